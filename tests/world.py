"""A whole server for a test, spoken to as users do: over HTTP, sockets and streams, with real tokens."""

import asyncio
import contextlib
import json
import socket
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import httpx
import uvicorn
from websockets.asyncio.client import connect

from app import auth, ids, tokens, transactions, users
from app.cli.lines import HttpLine, WebSocketLine
from app.main import Server
from app.settings import Settings

ANSWER_SECONDS = 10


@dataclass
class Answer:
    status: int
    body: dict[str, Any]

    @property
    def data(self) -> Any:
        return self.body.get("data")

    @property
    def errors(self) -> list[dict[str, Any]]:
        return self.body.get("errors", [])

    @property
    def codes(self) -> list[str]:
        """The codes of the top-level errors."""
        return [error["extensions"]["code"] for error in self.errors]


@dataclass
class Account:
    """A user with a token, and ways to ask."""

    world: "World"
    user: Any
    token: str

    @property
    def id(self) -> str:
        return ids.encode("user", self.user.id)

    @property
    def email(self) -> str:
        return self.user.email

    async def __call__(self, document: str, **variables: Any) -> Answer:
        return await self.world.ask(document, variables, token=self.token)

    async def change(self, mutation: str, fields: str, **given: Any) -> dict[str, Any]:
        """The payload of a mutation, by its name and its input."""
        kind = mutation[0].upper() + mutation[1:] + "Input!"
        document = f"mutation($input: {kind}) {{ {mutation}(input: $input) {{ {fields} errors {{ {ERROR} }} }} }}"
        answer = await self(document, input=given)
        assert answer.data is not None, answer.body
        return answer.data[mutation]

    async def do(self, mutation: str, fields: str, **given: Any) -> Any:
        """The object of a mutation that must succeed."""
        payload = await self.change(mutation, fields, **given)
        assert payload["errors"] == []
        return next(value for name, value in payload.items() if name != "errors")

    @contextlib.asynccontextmanager
    async def following(self, document: str, *, operation: str | None = None, **variables: Any):
        """A subscription over the socket: `await events.next()` is its next payload."""
        async with connect(
            self.world.url.replace("http", "ws") + "/graphql", subprotocols=["graphql-transport-ws"]
        ) as ws:
            await ws.send(json.dumps({"type": "connection_init", "payload": {"authorization": f"Bearer {self.token}"}}))
            assert json.loads(await ws.recv())["type"] == "connection_ack"
            payload = {"query": document, "operationName": operation, "variables": variables}
            await ws.send(json.dumps({"type": "subscribe", "id": "1", "payload": payload}))
            yield Events(ws)


@dataclass
class Events:
    ws: Any

    async def message(self) -> dict[str, Any]:
        async with asyncio.timeout(ANSWER_SECONDS):
            while True:
                message = json.loads(await self.ws.recv())
                if message["type"] != "ping":
                    return message

    async def next(self) -> Any:
        message = await self.message()
        assert message["type"] == "next", message
        assert "errors" not in message["payload"], message
        return next(iter(message["payload"]["data"].values()))


ERROR = "message code path allowed cycle"


class Prompt(uvicorn.Server):
    """Ends as soon as it is told and nobody is connected; uvicorn's own looks ten times a second, and then waits."""

    capture_signals = contextlib.nullcontext  # the tests' own process keeps its signals

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._told = asyncio.Event()

    def end(self) -> None:
        self.should_exit = True
        self._told.set()

    async def main_loop(self) -> None:
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._told.wait(), timeout=1)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self.server_state.connections or self.server_state.tasks:
            await super().shutdown(sockets)
        else:
            for server in self.servers:
                server.close()
            await self.lifespan.shutdown()


@dataclass
class World:
    """One server on a port of its own, over a database of its own."""

    settings: Settings
    database_url: str
    given: dict[str, Any] = field(default_factory=dict)  # what else the server is built from
    server: Server = field(init=False)
    url: str = field(init=False)

    def __post_init__(self) -> None:
        # With the protocol named, asyncio switches Nagle's algorithm off; without, each answer takes 40 ms.
        self._listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._listener.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.server = Server(self.settings, database_url=self.database_url, address=self.url, **self.given)
        self.http = httpx.AsyncClient(base_url=self.url, timeout=ANSWER_SECONDS, verify=False)

    @contextlib.asynccontextmanager
    async def running(self):
        lines = {"http": HttpLine, "ws": WebSocketLine}
        config = uvicorn.Config(self.server.app, log_config=None, lifespan="on", timeout_graceful_shutdown=2, **lines)
        self.process = Prompt(config)
        serving = asyncio.create_task(self.process.serve(sockets=[self._listener]))
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                while not self.process.started:
                    assert not serving.done(), "the server did not start"
                    await asyncio.sleep(0.005)
            yield self
        finally:
            self.server.drain()
            await self.http.aclose()
            self.process.end()
            await serving
            self._listener.close()

    async def account(self, name: str, *, admin: bool = False) -> Account:
        async with transactions.begin(self.server.db, None, auth.SYSTEM, request_id="test") as tx:
            user = await users.create(tx, email=f"{name}@example.com", name=name.title(), admin=admin)
            _, secret = await tokens.create(tx, user, name="test")
        return Account(self, user, secret)

    async def ask(self, document: str, variables: Any = None, *, token: str | None = None, **headers: str) -> Answer:
        if token:
            headers["authorization"] = f"Bearer {token}"
        headers["content-type"] = "application/json"
        body = json.dumps({"query": document, "variables": variables})  # httpx's own cannot say half a surrogate pair
        response = await self.http.post("/graphql", content=body, headers=headers)
        return Answer(response.status_code, response.json())


async def project(account: Account, **given: Any) -> str:
    """A new project of this account, by its id."""
    made = await account.do("createProject", "project { id }", **{"name": "Apollo", **given})
    return made["id"]


async def ticket(account: Account, project_id: str, **given: Any) -> Any:
    """A new ticket without a task."""
    wanted = {"projectId": project_id, "title": "Land on the moon", "startTask": False, **given}
    return await account.do("createTicket", "ticket { id number status }", **wanted)


async def task(account: Account, ticket_id: str, **given: Any) -> Any:
    wanted = {"ticketId": ticket_id, "title": "Build the lander", **given}
    return await account.do("createTask", "task { id title status }", **wanted)


async def share(account: Account, project_id: str, other: Account, role: str = "MEMBER") -> None:
    """Let another account into a project."""
    await account.do("setMember", "project { id }", projectId=project_id, email=other.email, role=role)


async def record(server: Server, project_id: UUID, *summaries: str, heard: bool = True) -> None:
    """Entries of a project's feed, in one transaction; nobody may have heard of it, as when a ring is lost."""
    bus = server.bus if heard else None
    async with transactions.begin(server.db, bus, auth.SYSTEM, request_id="test") as tx:
        for summary in summaries:
            tx.record("project.changed", project_id, summary, project_id=project_id)


def refusals(payload: dict[str, Any]) -> list[tuple[str, list[str] | None]]:
    """What a mutation refused: each code with its place in the input."""
    return [(error["code"], error["path"]) for error in payload["errors"]]
