"""A small schema with every behaviour that the endpoint has to cope with, and a real server for it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, NewType
from uuid import UUID

import strawberry
import uvicorn
from starlette.applications import Starlette
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp
from strawberry.schema.config import StrawberryConfig

from app.auth import Credentials, Principal
from app.enums import PrincipalKind
from app.errors import (
    AppError,
    BadUserInput,
    InvalidInput,
    LimitReached,
    NotFound,
    Several,
    Unauthenticated,
    Unavailable,
)
from app.settings import Settings
from schema.asgi import Endpoint

TOKEN = "right"
ORIGIN = "https://pages.example"

Picky = NewType("Picky", str)


def parse_picky(value: object) -> Picky:
    raise ValueError(f"internal words about {value}")


@strawberry.input
class Leaf:
    number: int
    word: str | None = None


@strawberry.type
class Item:
    number: int

    @strawberry.field
    def child(self) -> "Item":
        return Item(number=self.number + 1)

    @strawberry.field
    def other(self) -> "Item":
        return Item(number=self.number - 1)

    @strawberry.field
    def children(self) -> list["Item"]:
        return [Item(number=self.number + 1)]

    @strawberry.field
    def items(self, first: int | None = None, last: int | None = None) -> "Items":
        return Items(nodes=[Item(number=n) for n in range(min(first or last or 3, 3))])


@strawberry.type
class Fading:
    number: int
    away: int  # how often it cannot be loaded

    @strawberry.field
    def late(self) -> int:
        if self.away:
            self.away -= 1
            raise Unavailable("Away for a moment.")
        return self.number

    @strawberry.field
    async def slow(self) -> int:
        if self.away:
            self.away -= 1
            await asyncio.get_running_loop().create_future()
        return self.number


@strawberry.type
class Items:
    nodes: list[Item]
    total: int = 3


@strawberry.type
class Query:
    @strawberry.field
    def hello(self, name: str = "you") -> str:
        return f"hello {name}"

    @strawberry.field
    async def later(self) -> str:
        await asyncio.sleep(0)
        return "later"

    @strawberry.field
    async def never(self) -> str:
        await asyncio.get_running_loop().create_future()
        return "never"

    @strawberry.field
    def item(self) -> Item:
        return Item(number=1)

    @strawberry.field
    def items(self, first: int | None = None, last: int | None = None) -> Items:
        return Items(nodes=[Item(number=n) for n in range(min(first or last or 3, 3))])

    @strawberry.field
    def sum(self, leaves: list[Leaf]) -> int:
        return sum(leaf.number for leaf in leaves)

    @strawberry.field
    def picky(self, value: Picky | None = None) -> str | None:
        return value

    @strawberry.field
    def perhaps(self, word: strawberry.Maybe[str] = None) -> str | None:
        return word.value if word else None

    @strawberry.field
    def boom(self) -> str | None:
        raise RuntimeError("secret internals")

    @strawberry.field
    def missing(self) -> str | None:
        raise NotFound

    @strawberry.field
    def wrong(self) -> str:
        raise BadUserInput("That is wrong.", details={"argument": "wrong", "code": "not this"})

    @strawberry.field
    def several(self) -> str | None:
        raise Several([InvalidInput("One."), NotFound()])

    @strawberry.field
    def huge(self) -> strawberry.scalars.JSON:
        return 1 << 80  # type: ignore[return-value]

    @strawberry.field
    def unwritable(self) -> strawberry.scalars.JSON:
        return {1, 2}  # type: ignore[return-value]

    @strawberry.field
    def echo(self, value: strawberry.scalars.JSON) -> strawberry.scalars.JSON:
        return value

    @strawberry.field
    def whole(self) -> int | None:
        return "not a number"  # type: ignore[return-value]

    @strawberry.field
    def request(self, info: strawberry.Info) -> str:
        return info.context.request_id


@strawberry.type
class Mutation:
    @strawberry.mutation
    def add(self, info: strawberry.Info, number: int) -> int:
        info.context.toy.added.append(number)
        return sum(info.context.toy.added)


@dataclass
class Tick:
    number: int

    @property
    def cursor(self) -> str:
        return f"c{self.number}"


@strawberry.type(name="Tick")
class TickType:
    number: int

    @strawberry.field
    def odd(self) -> int | None:
        if self.number % 2:
            raise NotFound
        return None

    @strawberry.field
    def few(self) -> int:
        if self.number > 1:
            raise LimitReached("That is too much at once.")
        return self.number

    @strawberry.field
    def written(self) -> strawberry.scalars.JSON:
        return {1, 2} if self.number > 1 else 0  # type: ignore[return-value]

    @strawberry.field
    def item(self) -> Item:
        return Item(number=self.number)

    @strawberry.field
    def context(self, info: strawberry.Info) -> int:
        return info.context.serial


@strawberry.type
class Subscription:
    @strawberry.subscription
    async def ticks(self, info: strawberry.Info, to: int = 3) -> AsyncIterator[TickType]:
        after = info.context.resume_after
        with info.context.toy.stream():
            for number in range(int(after.removeprefix("c")) + 1 if after else 0, to):
                yield Tick(number)  # type: ignore[misc]

    @strawberry.subscription
    async def fading(self) -> AsyncIterator[Fading]:
        for number, away in enumerate((0, 2, 99)):
            yield Fading(number=number, away=away)

    @strawberry.subscription
    async def forever(self, info: strawberry.Info) -> AsyncIterator[int]:
        with info.context.toy.stream():
            yield 1
            await asyncio.get_running_loop().create_future()

    @strawberry.subscription
    async def flood(self, info: strawberry.Info) -> AsyncIterator[str]:
        with info.context.toy.stream():
            while True:
                info.context.toy.flooded += 1
                yield "x" * 10_000
                await asyncio.sleep(0)

    @strawberry.subscription
    async def breaks(self) -> AsyncIterator[int]:
        yield 1
        raise RuntimeError("secret internals")

    @strawberry.subscription
    async def refuses(self) -> AsyncIterator[int]:
        raise NotFound
        yield 1


@dataclass
class ToyContext:
    toy: "Toy"
    principal: Principal
    request_id: str
    resume_after: str | None
    serial: int


@dataclass
class Toy:
    """What tests may look at and turn while the server runs."""

    added: list[int] = field(default_factory=list)
    streams: int = 0
    contexts: int = 0
    flooded: int = 0
    observed: list[dict[str, Any]] = field(default_factory=list)
    revoked: asyncio.Event = field(default_factory=asyncio.Event)
    kind: PrincipalKind = PrincipalKind.USER
    brought: list[Credentials] = field(default_factory=list)

    @contextlib.contextmanager
    def stream(self):
        self.streams += 1
        try:
            yield
        finally:
            self.streams -= 1

    async def authenticate(self, credentials: Credentials) -> Principal:
        self.brought.append(credentials)
        by_cookie = credentials.cookie == TOKEN and credentials.origin_allowed and credentials.marked
        if credentials.bearer == "broken":
            raise RuntimeError("secret internals")
        if credentials.bearer == "away":
            raise Unavailable("Away for a moment.")
        if credentials.bearer != TOKEN and not by_cookie:
            raise Unauthenticated("Sign in.")
        return Principal(kind=self.kind, id=UUID(int=1), name="toy")

    def make_context(self, *, principal: Principal, request_id: str, resume_after: str | None) -> ToyContext:
        self.contexts += 1
        return ToyContext(self, principal, request_id, resume_after, self.contexts)

    async def until_revoked(self, _principal: Principal) -> AppError:
        await self.revoked.wait()
        return Unauthenticated("The token was revoked.")

    def observe(self, **operation: Any) -> None:
        self.observed.append(operation)


def schema() -> strawberry.Schema:
    scalars = {Picky: strawberry.scalar(name="Picky", parse_value=parse_picky, serialize=str)}
    return strawberry.Schema(Query, Mutation, Subscription, config=StrawberryConfig(scalar_map=scalars))


def endpoint(toy: Toy, settings: Settings | None = None, of: strawberry.Schema | None = None) -> Endpoint:
    return Endpoint(
        of or schema(),
        settings=settings or Settings(),
        authenticate=toy.authenticate,
        make_context=toy.make_context,
        until_revoked=toy.until_revoked,
        origins=lambda origin: origin == ORIGIN,
        observe=toy.observe,
    )


@dataclass
class Served:
    toy: Toy
    endpoint: Endpoint
    url: str
    server: uvicorn.Server

    @property
    def ws_url(self) -> str:
        return self.url.replace("http", "ws", 1)


@contextlib.asynccontextmanager
async def serve(settings: Settings | None = None, toy: Toy | None = None, **given: Any) -> AsyncIterator[Served]:
    """The toy at /graphql on a free port, until the block ends."""
    toy = toy or Toy()
    served = endpoint(toy, settings)
    app = Starlette(routes=[Route("/graphql", served), WebSocketRoute("/graphql", served)])
    async with listening(app, ws_max_size=256 << 10, **given) as server:
        port = server.servers[0].sockets[0].getsockname()[1]
        yield Served(toy, served, f"http://127.0.0.1:{port}/graphql", server)


@contextlib.asynccontextmanager
async def listening(app: ASGIApp, **given: Any) -> AsyncIterator[uvicorn.Server]:
    """The application on a free port, until the block ends."""
    config = uvicorn.Config(app, port=0, lifespan="off", log_config=None, **given)
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.startup()  # without its main loop, which only waits for signals
    try:
        yield server
    finally:
        for socket in server.servers:
            socket.close()
        for connection in list(server.server_state.connections):
            connection.shutdown()
        for task in list(server.server_state.tasks):
            task.cancel()
        await until(lambda: not server.server_state.tasks)


async def until(condition: Callable[[], bool], seconds: float = 10) -> None:
    """Wait until the condition holds; the test fails when it never does."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - conditions of a server that knows nothing of the test
            await asyncio.sleep(0.005)
