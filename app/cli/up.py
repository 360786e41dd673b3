"""`omoi up`: one process that serves everything, and ends well."""

import asyncio
import contextlib
import errno
import gc
import getpass
import logging
import os
import shutil
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import uvicorn
import uvloop
from rich.console import Console

from app import auth, installation, logs, tokens, transactions, users
from app.cli import database
from app.cli.database import HOLDER
from app.cli.lines import HttpLine, WebSocketLine
from app.db import Database
from app.errors import CannotStart, Conflict
from app.main import Server
from app.models import User
from app.settings import Settings
from demo import model

ADMIN_EMAIL = "admin@localhost"
BACKLOG = 2048
PING_SECONDS = 20.0
FRAME_SLACK = 4


class Process(uvicorn.Server):
    """Uvicorn, but the first signal drains before it stops, and the second ends the process at once."""

    def __init__(self, config: uvicorn.Config, server: Server, announce: Callable[[], Awaitable[None]]) -> None:
        super().__init__(config)
        self._server = server
        self._announce = announce
        self._leaving_seconds = 0.0

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            gc.collect()
            gc.freeze()  # what is here now stays: schema, models, routes need not be looked through again and again
            await self._announce()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for listening in sockets or ():
            listening.close()
        await asyncio.sleep(self._leaving_seconds)  # then Uvicorn closes all at once who are still there
        patience = self._server.settings.drain_seconds - self._leaving_seconds
        self.config.timeout_graceful_shutdown = max(1, round(patience))
        await super().shutdown(sockets)
        for connection in list(self.server_state.connections):
            connection.transport.abort()  # its client does not read, and what waits to be written would wait for ever

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._asked_to_stop)
        yield

    def stop(self) -> None:
        self.should_exit = True
        self._leaving_seconds = self._server.drain()

    def _asked_to_stop(self) -> None:
        if self.should_exit:
            os._exit(1)  # the embedded database sees its owner go and stops by itself
        self.stop()


Visit = Callable[[Server], Awaitable[None]]


def run(settings: Settings, console: Console, *, visit: Visit | None = None) -> None:
    """Serve until told to stop or, with a visit, until that is over; its refusal is raised."""
    # A visit tells itself what happens, and shall not be broken off in the middle of a line.
    logs.configure(production=settings.production, level=logging.WARNING if visit else logging.INFO)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings, console, visit))


async def _serve(settings: Settings, console: Console, visit: Visit | None) -> None:
    with contextlib.closing(_listen(settings)) as listener:
        local = local_address(settings.host, listener.getsockname()[1])
        address = settings.public_url or local
        async with (
            database.owned(settings, holder=f"{HOLDER}{address}") as url,
            _model(settings) as scripted,
        ):
            server = Server(settings, database_url=url, address=address, local_address=local, scripted_model=scripted)
            await installation.require(server.db, server.keys)  # here its refusal is one sentence, and no traceback
            config = uvicorn.Config(
                server.app,
                log_config=None,
                access_log=False,
                server_header=False,
                lifespan="on",
                http=HttpLine,
                ws=WebSocketLine,
                ws_max_size=FRAME_SLACK * settings.frame_bytes,  # so that we hear of it, and close with a code of ours
                ws_ping_interval=PING_SECONDS,
                ws_ping_timeout=PING_SECONDS,
                ws_per_message_deflate=False,
            )

            async def announce() -> None:
                await _announce(server, settings, console)
                if visit is not None:
                    visiting.append(asyncio.create_task(_visit(process, visit(server))))

            visiting: list[asyncio.Task[None]] = []
            process = Process(config, server, announce)
            await process.serve(sockets=[listener])
            if not process.started:
                raise CannotStart("The server did not start. What it logged above says why.")
            for ended in visiting:
                await ended


async def _visit(process: Process, visit: Awaitable[None]) -> None:
    try:
        await visit
    finally:
        process.stop()


@contextlib.asynccontextmanager
async def _model(settings: Settings) -> AsyncIterator[str | None]:
    """Where there is no key for a model, a script stands in for one; None where there is."""
    if settings.has_model_key:
        yield None
        return
    async with model.serving() as url:
        yield url


def local_address(host: str, port: int) -> str:
    """Where a browser on this machine finds a server that listens there."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared, not listened on
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _listen(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise CannotStart(_why_not(settings, error)) from error
    return listener


def _why_not(settings: Settings, error: OSError) -> str:
    place = f"{settings.host}:{settings.port}"
    if error.errno == errno.EADDRINUSE:
        return f"Something listens on {place} already. Stop it, or choose another port with PORT or --port (0: any)."
    if error.errno == errno.EACCES:
        return f"Listening on {place} is not allowed for this user. Choose a port above 1023 with PORT or --port."
    return f"Listening on {place} is not possible: {error.strerror}. Check HOST and PORT."


async def _announce(server: Server, settings: Settings, console: Console) -> None:
    address = server.services.address
    admin, fresh = await require_admin(server.db)
    console.print("OmoiOS is up at", address, style="bold", markup=False, soft_wrap=True)
    if fresh or not settings.database_url:
        console.print(f"Sign in:  {await sign_in_link(server.db, admin, address)}", soft_wrap=True)
        again = f"          (works once, for ten minutes; `{_command()} user link` makes another)"
        console.print(again, markup=False, soft_wrap=True)
    if not settings.production:
        console.print(f"GraphiQL: {address}/graphiql", soft_wrap=True)
    if not settings.has_model_key:
        console.print("Model:    none; a script plays it until ANTHROPIC_API_KEY is set", soft_wrap=True)
    console.print("Data:    ", "DATABASE_URL" if settings.database_url else settings.data, markup=False, soft_wrap=True)


async def require_admin(db: Database) -> tuple[User, bool]:
    """The first admin, made now when there is none."""
    async with db.reading() as session:
        admin = await users.first_admin(session)
    if admin is not None:
        return admin, False
    try:
        async with transactions.begin(db, None, auth.SYSTEM, request_id="first-start") as tx:
            return await users.create(tx, email=ADMIN_EMAIL, name=_own_name(), admin=True), True
    except Conflict:  # another replica was first
        async with db.reading() as session:
            admin = await users.first_admin(session)
        if admin is None:
            raise
        return admin, False


async def sign_in_link(db: Database, user: User, address: str) -> str:
    async with transactions.begin(db, None, auth.SYSTEM, request_id="command-line") as tx:
        return f"{address}/sign-in?token={await tokens.create_sign_in(tx, user)}"


def _command() -> str:
    """How this command is called here, be it on the PATH or not."""
    called = Path(sys.argv[0])
    on_path = shutil.which("omoi")
    if on_path and Path(on_path).resolve() == called.resolve():
        return "omoi"
    return os.path.relpath(called)


def _own_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # an account without a name, as in some containers
        return "admin"
