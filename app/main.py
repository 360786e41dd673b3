"""The one place where everything is built and wired: settings in, a Starlette application out."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp

import schema
from app import git, installation, web
from app.attempts import Fleet
from app.auth import MARK, Principal
from app.bus import Bus
from app.db import Database
from app.edge import Edge, Metrics
from app.feeds import Feeds
from app.gate import Gate
from app.gateway import Gateway
from app.git_door import Door
from app.masking import Masks
from app.quotas import Quotas
from app.rights import Rights
from app.secrets import Keys
from app.settings import Settings, origin_of
from app.upstream import Upstream
from app.worker_door import WorkerDoor
from orchestrator import engine
from orchestrator.providers import Tier
from orchestrator.providers.local.provider import LocalProvider
from orchestrator.site import Site
from resolvers.context import Context, Services
from schema.asgi import Endpoint

API = "/graphql"
MODEL = "/model"
CORS_SECONDS = 600
SANDBOXES = "sandboxes"  # the local provider's part of the data folder
LOOPBACK = ("127.0.0.1", "localhost", "::1")
CORS_HEADERS = ["authorization", "content-type", "last-event-id", MARK, "omoi-cost", "x-request-id"]


class Server:
    """The application with the two things that its owner does to it: serve it, and tell it to drain."""

    def __init__(
        self,
        settings: Settings,
        *,
        database_url: str,
        address: str,  # under which browsers reach it
        local_address: str | None = None,  # under which this machine does, where that is another one
        scripted_model: str | None = None,  # where the stand-in for a model answers, for whoever has no key
        worker_environment: Mapping[str, str] | None = None,
        tier: Tier
        | None = None,  # of sandboxes on this machine, where it shall not be the best that the machine allows
    ) -> None:
        self.settings = settings
        self._address = address
        self._local_address = local_address or address
        self._worker_environment = worker_environment or {}
        self._tier = tier
        self.keys = Keys.load(settings)
        self.db = Database(database_url, connections=settings.database_connections)
        self.bus = Bus(settings.redis_url)
        self.gate = Gate(self.db, self.bus, self.keys)
        self.masks = Masks(self.db, self.keys, settings)
        self.quotas = Quotas(settings)
        self.feeds = Feeds(
            self.db,
            self.bus,
            window_seconds=settings.stream_window_seconds,
            poll_seconds=settings.stream_poll_seconds,
        )
        self.rights = Rights(self.db, self.bus)
        self.gateway = Gateway(
            Upstream.of(settings, stand_in=scripted_model),
            db=self.db,
            bus=self.bus,
            keys=self.keys,
            authenticate=self.gate.authenticate,
            allow_unisolated=settings.allow_unisolated,
        )
        origins, metrics = _origins(settings, address), Metrics()
        self.endpoint = Endpoint(
            schema.build(),
            settings=settings,
            authenticate=self.gate.authenticate,
            make_context=self._context,
            until_revoked=self.gate.until_revoked,
            origins=origins,
            observe=metrics.observe,
        )
        self._probes = web.Probes(self.db, self.bus, metrics, connections=lambda: self.endpoint.connections)
        https = address.startswith("https://")
        sign_in = web.SignIn(self.db, self.bus, origins=origins, https=https)
        # Around all of Starlette, whose own last resort is outside of its middleware.
        self.app: ASGIApp = Edge(self._doors(sign_in), metrics=metrics, access_log=settings.access_log, https=https)

    def _doors(self, sign_in: web.SignIn) -> Starlette:
        """Everything that answers, by its path."""
        settings, authenticate = self.settings, self.gate.authenticate
        return Starlette(
            routes=[
                Route(API, self.endpoint),
                WebSocketRoute(API, self.endpoint),
                *WorkerDoor(self.db, self.masks, authenticate).routes(),
                Route(f"{MODEL}/{{path:path}}", self.gateway),
                Route(f"{git.DOOR}/{{path:path}}", Door(settings, self.db, authenticate)),
                *web.routes(sign_in, self._probes, production=settings.production),
            ],
            middleware=_cross_origin(settings),
            lifespan=self._lifespan,
        )

    def drain(self) -> float:
        """From now on: not ready, no new work, and whoever watches is sent to another replica, which takes so long."""
        self._probes.draining = True
        return self.endpoint.drain()

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self.db.close)
            self.site = site = self._site(await installation.require(self.db, self.keys))
            self.services = self._services(site)
            await stack.enter_async_context(self.bus.running())
            await stack.enter_async_context(self.gate.running())
            await stack.enter_async_context(self.feeds.running())
            await stack.enter_async_context(self.rights.running())
            await stack.enter_async_context(self.gateway.running())
            if self.settings.orchestrator_enabled:
                await stack.enter_async_context(engine.running(site))
            yield

    def _site(self, deployment: str) -> Site:
        machines = self.settings.local_sandboxes
        folder = self.settings.data / SANDBOXES
        provider = LocalProvider(folder, deployment=deployment, machines=machines, tier=self._tier)
        life = timedelta(seconds=self.settings.task_seconds)
        return Site(
            settings=self.settings,
            db=self.db,
            bus=self.bus,
            keys=self.keys,
            masks=self.masks,
            provider=provider,
            fleet=Fleet(
                provider=provider.name,
                place=provider.place() if self.settings.orchestrator_enabled else None,
                machines=machines,
                deployment=deployment,
                life=life,
            ),
            address=self._local_address,
            worker_environment=self._worker_environment,
        )

    def _services(self, site: Site) -> Services:
        return Services(
            settings=self.settings,
            db=self.db,
            bus=self.bus,
            keys=self.keys,
            masks=self.masks,
            quotas=self.quotas,
            feeds=self.feeds,
            rights=self.rights,
            address=self._address,
            fleet=site.fleet,
            fleet_health=site.health if self.settings.orchestrator_enabled else None,
            read_log=lambda sandbox, lines: site.provider.log(sandbox.name, lines),
        )

    def _context(self, *, principal: Principal, request_id: str, resume_after: str | None = None) -> Context:
        return Context(self.services, principal, request_id=request_id, resume_after=resume_after)


def _origins(settings: Settings, address: str) -> Callable[[str], bool]:
    """The server's own pages, on loopback under each of its names, and the origins that the operator lists."""
    allowed = {origin_of(address), *settings.allowed_origins}
    parts = urlsplit(address)
    if parts.hostname in LOOPBACK:
        port = f":{parts.port}" if parts.port else ""
        allowed |= {origin_of(f"{parts.scheme}://{name}{port}") for name in ("127.0.0.1", "localhost", "[::1]")}
    return allowed.__contains__


def _cross_origin(settings: Settings) -> list[Middleware]:
    """Pages of other origins bring their own token, never a cookie."""
    if not settings.allowed_origins:
        return []
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=settings.allowed_origins,
            allow_methods=["GET", "POST"],
            allow_headers=CORS_HEADERS,
            expose_headers=["x-request-id"],
            max_age=CORS_SECONDS,
        )
    ]
