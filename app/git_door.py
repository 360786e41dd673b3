"""Git's smart HTTP for what this server opens: a sandbox reads its project's repository, and writes one branch."""

import asyncio
import base64
import binascii
import os
import re
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from uuid import UUID

import structlog
from starlette.types import Receive, Scope, Send

from app import git, programs, remotes
from app.auth import Credentials, Principal
from app.bodies import Body, ClientGone
from app.db import Database
from app.enums import PrincipalKind
from app.errors import AppError, Forbidden, Unauthenticated, Unavailable
from app.mirrors import Mirrors, Served
from app.models import Project
from app.pushes import Push
from app.settings import Settings

READ, WRITE = "git-upload-pack", "git-receive-pack"
CALLS = {("GET", "info/refs"), ("POST", READ), ("POST", WRITE)}
AT_ONCE = 32  # in one process
OF_A_SANDBOX = 4
EXCHANGE_SECONDS = 1800
CHUNK_BYTES = 64 << 10
MIRROR_SECONDS = 60.0  # how old it may be in the course of an exchange; at its beginning it is fetched
MIRRORS = "mirrors"
PUSH_BYTES = 2 << 30
PROTOCOL = re.compile("version=[0-2]")
SIGN_IN = ((b"www-authenticate", b'Basic realm="OmoiOS"'),)
CONFIG = {
    "http.receivepack": "true",
    "http.uploadpack": "true",
    "http.getanyfile": "false",
    "core.hooksPath": os.devnull,  # hooks are programs of the repository, and nothing of it runs here
    "safe.directory": "*",  # whoever owns it: which repository this is was decided before
    "receive.denyDeletes": "true",
    "receive.denyNonFastForwards": "true",
    "receive.fsckObjects": "true",
    "receive.autogc": "false",  # it would run on when the exchange is over
    "receive.maxInputSize": str(PUSH_BYTES),
}

Authenticate = Callable[[Credentials], Awaitable[Principal]]
Extra = tuple[tuple[bytes, bytes], ...]

log = structlog.get_logger()


class NotServed(AppError):
    """A request that HTTP itself has a status for."""

    def __init__(self, status: int, message: str, headers: Extra = ()) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers


class Door:
    """The ASGI application behind /git/repository.git."""

    def __init__(self, settings: Settings, db: Database, authenticate: Authenticate) -> None:
        self._settings = settings
        self._db = db
        self._authenticate = authenticate
        self._mirrors = Mirrors(settings.data / MIRRORS)
        self._open: Counter[UUID] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send)
        try:
            async with asyncio.timeout(EXCHANGE_SECONDS):
                await self._serve(exchange)
        except ClientGone:
            return
        except NotServed as error:
            await exchange.say(error.status, error.message, error.headers)
        except Unauthenticated as error:
            await exchange.say(401, error.message, SIGN_IN)
        except Unavailable as error:
            await exchange.say(503, error.message)
        except AppError as error:
            await exchange.say(403, error.message)
        except TimeoutError:
            await exchange.say(408, "This took too long.")

    async def _serve(self, exchange: "Exchange") -> None:
        principal = await self._authenticate(Credentials(bearer=_password(exchange.headers)))
        if principal.kind is not PrincipalKind.SANDBOX:
            raise Forbidden("Only a sandbox's token opens this door.")
        exchange.require_known()
        async with self._db.reading() as session:
            place = await git.place(session, principal.id)
        repository = await self._repository(place.project, 0.0 if exchange.is_first else MIRROR_SECONDS)
        with self._room(principal.id):
            await exchange.run(repository, place)

    async def _repository(self, project: Project, within_seconds: float) -> Served:
        remote = git.served(self._settings, project)
        if isinstance(remote, remotes.Local):
            return Served(folder=remotes.folder(self._settings, remote.path))
        return await self._mirrors.fresh(project, remote, within_seconds=within_seconds)

    @contextmanager
    def _room(self, sandbox_id: UUID) -> Iterator[None]:
        if self._open.total() >= AT_ONCE or self._open[sandbox_id] >= OF_A_SANDBOX:
            raise NotServed(429, "There are too many git operations at once.", ((b"retry-after", b"1"),))
        self._open[sandbox_id] += 1
        try:
            yield
        finally:
            self._open -= Counter([sandbox_id])  # an account of zero is dropped


class Exchange:
    """One request, and git's answer to it."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.headers: Mapping[bytes, bytes] = dict(scope["headers"])
        self._method: str = scope["method"]
        self._path: str = scope["path_params"]["path"]
        self._query: str = scope["query_string"].decode("latin-1")
        self._body = Body(receive)
        self._send = send
        self._answered = False

    @property
    def is_first(self) -> bool:
        """Git asks what there is, and then for it."""
        return self._method == "GET"

    def require_known(self) -> None:
        """Only the smart protocol is spoken: a plain file of the repository is never served."""
        asks = self._query in {f"service={READ}", f"service={WRITE}"} if self._method == "GET" else not self._query
        if (self._method, self._path) not in CALLS or not asks:
            raise NotServed(404, "There is nothing here but git's smart protocol.")

    async def run(self, repository: Served, place: git.Place) -> None:
        head = await self._allowed_head(place) if self._path == WRITE else b""
        process = await asyncio.create_subprocess_exec(
            "git",
            "http-backend",
            stdin=PIPE,
            stdout=PIPE,
            stderr=DEVNULL,
            env=self._environment(repository),
            cwd="/",
            start_new_session=True,
        )
        feeding = asyncio.create_task(self._feed(process, head))
        answering = asyncio.create_task(self._answer(process))
        try:
            done, _ = await asyncio.wait({feeding, answering}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            feeding.cancel()
            answering.cancel()
            await asyncio.gather(feeding, answering, return_exceptions=True)
            await programs.end(process)

    async def say(self, status: int, message: str, headers: Extra = ()) -> None:
        """A sentence in git's place; when git's own answer has begun, breaking off is all that can be said."""
        if self._answered:
            return
        body = f"{message}\n".encode()
        length = (b"content-length", str(len(body)).encode())
        await self._start(status, ((b"content-type", b"text/plain; charset=utf-8"), length, *headers))
        await self._send({"type": "http.response.body", "body": body})

    async def _allowed_head(self, place: git.Place) -> bytes:
        """The body up to where its commands have been read, all of them allowed."""
        if b"content-encoding" in self.headers:
            raise NotServed(415, "A push is sent as it is, and not compressed once more.")
        if place.branch is None or place.branch == place.project.default_branch:
            raise Forbidden("This sandbox has no branch of its own to push to.")
        push = Push(place.branch)
        while (chunk := await self._body.chunk()) is not None:
            if head := push.feed(chunk):
                return head
        raise NotServed(400, "The push ended before it had said what it wants.")

    async def _feed(self, process: Process, head: bytes) -> None:
        """Give git the body, then stay until the client leaves."""
        assert process.stdin is not None
        chunk: bytes | None = head
        reads = True
        while chunk is not None:
            reads = reads and await _given(process.stdin, chunk)
            chunk = await self._body.chunk()
        process.stdin.close()
        await self._body.left()

    async def _answer(self, process: Process) -> None:
        """As a CGI program says it: headers with the status among them, an empty line, and the body."""
        assert process.stdout is not None
        try:
            said = await process.stdout.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            log.warning("git_failed", call=self._path, code=await process.wait())
            raise NotServed(502, "Git ended without an answer.") from None
        status, headers = _headers(said)
        await self._start(status, headers)
        while chunk := await process.stdout.read(CHUNK_BYTES):
            await self._send({"type": "http.response.body", "body": chunk, "more_body": True})
        if code := await process.wait():
            log.info("git_ended_with_error", call=self._path, code=code)
        await self._send({"type": "http.response.body"})

    async def _start(self, status: int, headers: Extra) -> None:
        self._answered = True
        await self._send({"type": "http.response.start", "status": status, "headers": list(headers)})

    def _environment(self, repository: Served) -> dict[str, str]:
        """All that git hears of: nothing of this server's own environment or configuration.

        No length: http-backend 2.39 never ends when a body is shorter than it was told. Without, it reads to the end.
        """
        config = {**CONFIG, **repository.config}
        given = {name.decode("latin-1"): value.decode("latin-1") for name, value in self.headers.items()}
        env = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": os.devnull,
            **repository.env,
            "LANG": "C.UTF-8",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_COUNT": str(len(config)),
            "GIT_HTTP_EXPORT_ALL": "1",
            "GIT_PROJECT_ROOT": str(repository.folder),
            "PATH_INFO": f"/{self._path}",
            "QUERY_STRING": self._query,
            "REQUEST_METHOD": self._method,
            "CONTENT_TYPE": given.get("content-type", ""),
            "REMOTE_USER": git.SANDBOX_USERNAME,
            "REMOTE_ADDR": "127.0.0.1",
        }
        for place, (key, value) in enumerate(config.items()):
            env |= {f"GIT_CONFIG_KEY_{place}": key, f"GIT_CONFIG_VALUE_{place}": value}
        if "content-encoding" in given:
            env["HTTP_CONTENT_ENCODING"] = given["content-encoding"]
        if PROTOCOL.fullmatch(given.get("git-protocol", "")):
            env["GIT_PROTOCOL"] = given["git-protocol"]
        return env


async def _given(pipe: asyncio.StreamWriter, chunk: bytes) -> bool:
    """False: git has answered without reading to the end. uvloop says that of a closed pipe as a RuntimeError."""
    try:
        pipe.write(chunk)
        await pipe.drain()
    except (ConnectionError, RuntimeError):
        return False
    return True


def _headers(said: bytes) -> tuple[int, Extra]:
    pairs = [line.partition(b":") for line in said.split(b"\r\n") if line]
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    status = int(headers.pop(b"status", b"200").split()[0])
    return status, tuple(headers.items())


def _password(headers: Mapping[bytes, bytes]) -> str | None:
    """The password of Basic; the user's name says nothing."""
    scheme, _, encoded = headers.get(b"authorization", b"").partition(b" ")
    if scheme.lower() != b"basic":
        return None
    try:
        return base64.b64decode(encoded.strip(), validate=True).decode().partition(":")[2] or None
    except (binascii.Error, UnicodeDecodeError):
        return None
