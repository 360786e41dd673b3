"""The pages and probes beside the API: signing in and out, GraphiQL, and health for machines."""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Message, Receive, Scope, Send

from app import auth, tokens, transactions, upgrade
from app.auth import COOKIE, MARK
from app.bus import Bus
from app.db import Database, DatabaseUnavailable
from app.edge import Metrics
from app.errors import AppError, CannotStart, Unauthenticated

GRAPHIQL = Path(__file__).parent.parent / "web" / "graphiql" / "dist"
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'nonce-{nonce}'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; worker-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
ASSET_POLICY = b"default-src 'none'; script-src 'self'"
FOR_EVER = b"public, max-age=31536000, immutable"
NONCE_BYTES = 16
READY_SECONDS = 5


class SignIn:
    """A link spends itself on a session cookie; the cookie counts only together with an Origin and a mark."""

    def __init__(self, db: Database, bus: Bus, *, origins: Callable[[str], bool], https: bool) -> None:
        self._db = db
        self._bus = bus
        self._origins = origins
        self._https = https

    async def enter(self, request: Request) -> Response:
        if request.method == "HEAD":  # Starlette adds it to GET; what only looks at a link must not spend it
            return PlainTextResponse("Links are opened with GET.", 405, headers={"allow": "GET"})
        secret = request.query_params.get("token", "")
        try:
            async with transactions.begin(self._db, self._bus, auth.SYSTEM, request_id=_id_of(request)) as tx:
                _, session = await tokens.sign_in(tx, secret)
        except AppError as error:
            status = 403 if isinstance(error, Unauthenticated) else 503
            return PlainTextResponse(error.message, status, headers={"cache-control": "no-store"})
        response = RedirectResponse("/", 303, headers={"cache-control": "no-store"})
        response.set_cookie(
            COOKIE,
            session,
            max_age=int(tokens.SESSION_LIFE.total_seconds()),
            httponly=True,
            samesite="strict",
            secure=self._https,
        )
        return response

    async def leave(self, request: Request) -> Response:
        """Ends the browser's session on the server too."""
        origin = request.headers.get("origin", "")
        if not (self._origins(origin) and MARK in request.headers):
            return PlainTextResponse("Signing out takes a page of this server.", 403)
        if secret := request.cookies.get(COOKIE):
            try:
                async with transactions.begin(self._db, self._bus, auth.SYSTEM, request_id=_id_of(request)) as tx:
                    await tokens.sign_out(tx, secret)
            except DatabaseUnavailable as error:
                return PlainTextResponse(error.message, 503)
        response = Response(status_code=204)
        response.delete_cookie(COOKIE, httponly=True, samesite="strict", secure=self._https)
        return response


class Probes:
    """What load balancers and Prometheus ask."""

    def __init__(self, db: Database, bus: Bus, metrics: Metrics, *, connections: Callable[[], int]) -> None:
        self._db = db
        self._bus = bus
        self._metrics = metrics
        self._connections = connections
        self.draining = False

    async def livez(self, _: Request) -> Response:
        """The loop turns, or nobody would answer here."""
        return PlainTextResponse("ok")

    async def readyz(self, _: Request) -> Response:
        problem = "This server is shutting down." if self.draining else await self._problem()
        return JSONResponse({"ready": problem is None, "problem": problem}, 200 if problem is None else 503)

    async def metrics(self, _: Request) -> Response:
        self._metrics.connections.set(self._connections())
        self._metrics.listeners.set(self._bus.listeners)
        self._metrics.pool.set(self._db.connections_used)
        return Response(generate_latest(self._metrics.registry), media_type=CONTENT_TYPE_LATEST)

    async def _problem(self) -> str | None:
        try:
            async with asyncio.timeout(READY_SECONDS):
                await upgrade.require_current(self._db)
        except (DatabaseUnavailable, CannotStart) as error:
            return str(error)
        except TimeoutError:
            return "The database does not answer."
        return None


class Assets:
    """Hashed files: whoever has one keeps it. Workers obey the policy of their own file, so it has to allow scripts."""

    def __init__(self, folder: Path) -> None:
        self._files = StaticFiles(directory=folder, check_dir=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == 200:
                message["headers"] += [(b"content-security-policy", ASSET_POLICY), (b"cache-control", FOR_EVER)]
            await send(message)

        await self._files(scope, receive, answer)


async def graphiql(_: Request) -> Response:
    page = GRAPHIQL / "index.html"
    if not page.exists():
        return PlainTextResponse("GraphiQL is not built here. `make up` builds it.", 404)
    nonce = secrets.token_urlsafe(NONCE_BYTES)
    headers = {"content-security-policy": PAGE_POLICY.format(nonce=nonce), "cache-control": "no-store"}
    return HTMLResponse(page.read_text().replace("__CSP_NONCE__", nonce), headers=headers)


async def home(_: Request) -> Response:
    return RedirectResponse("/graphiql", 303)


async def bare_home(_: Request) -> Response:
    return PlainTextResponse("OmoiOS. The API is at /graphql.")


def routes(sign_in: SignIn, probes: Probes, *, production: bool) -> Sequence[BaseRoute]:
    """Every path but the API's own."""
    pages: list[BaseRoute] = [Route("/", bare_home)]
    if not production:
        pages = [
            Route("/", home),
            Route("/graphiql", graphiql),
            Mount("/graphiql/assets", Assets(GRAPHIQL / "assets")),
        ]
    return [
        *pages,
        Route("/sign-in", sign_in.enter, methods=["GET"]),
        Route("/sign-out", sign_in.leave, methods=["POST"]),
        Route("/livez", probes.livez),
        Route("/readyz", probes.readyz),
        Route("/metrics", probes.metrics),
    ]


def _id_of(request: Request) -> str:
    return str(request.scope["state"]["request_id"])
