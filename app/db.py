"""The connection to Postgres: one pool, short sessions, and one sentence when it cannot be reached or is busy."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import structlog
from sqlalchemy import event, text
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import DBAPIError, InvalidatePoolError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry

from app.errors import Unavailable

CONNECT_SECONDS = 5
STATEMENT_SECONDS = 10
POOL_WAIT_SECONDS = 5  # shorter than a query may last, so that the caller learns what it waited for
CONNECTION_LIFE_SECONDS = 1800
IDLE_SECONDS = 1.0
USED_AT = "used_at"  # in what the pool notes of a connection
UNREACHABLE = ("08", "53300", "57P")  # no connection, none left, and a server that starts or stops
BUSY = ("57014", "55P03", "40P01", "40001")  # too slow, a lock that others hold, a ring of locks, and who came second

log = structlog.get_logger()


class DatabaseUnavailable(Unavailable):
    def __init__(self, message: str = "The database cannot be reached right now. Try again in a moment.") -> None:
        super().__init__(message)


class DatabaseBusy(DatabaseUnavailable):
    """Nothing is wrong with what was asked, and nothing of it was done."""

    def __init__(self, message: str = "The database took too long over this, or others were in its way.") -> None:
        super().__init__(f"{message} Try again in a moment.")


class Database:
    def __init__(self, url: str, *, connections: int) -> None:
        self.engine: AsyncEngine = create_async_engine(
            url,
            pool_size=connections,
            max_overflow=0,
            pool_timeout=POOL_WAIT_SECONDS,
            hide_parameters=True,  # what people write does not belong into error messages and logs
            pool_recycle=CONNECTION_LIFE_SECONDS,
            connect_args={
                "timeout": CONNECT_SECONDS,
                "command_timeout": STATEMENT_SECONDS + 1,
                "server_settings": {
                    "application_name": "omoios",
                    "timezone": "UTC",
                    "statement_timeout": str(STATEMENT_SECONDS * 1000),
                    "lock_timeout": str(STATEMENT_SECONDS * 1000),
                },
            },
        )
        _check_the_idle(self.engine)
        self._sessions = async_sessionmaker(self.engine, expire_on_commit=False)
        self.background = asyncio.Semaphore(max(1, connections // 2))  # streams leave the other half to requests
        self._told: list[Callable[[Mapping[Any, Any]], None]] = []

    def after_commit(self, tell: Callable[[Mapping[Any, Any]], None]) -> None:
        """From now on tell this one, after each commit here, what the transaction left in its session's `info`."""
        self._told.append(tell)

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncSession]:
        """A short session for reads. Nothing is written through it, so what was read counts however it ends."""
        complete = False
        try:
            with _reachable():
                async with self._sessions() as session:
                    yield session
                    complete = True
        except DatabaseUnavailable:
            if not complete:  # else only the way back into the pool failed, and the pool has seen to it
                raise

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[AsyncSession]:
        """One transaction: committed at the end, rolled back by any exception."""
        with _reachable():
            async with self._sessions.begin() as session:
                yield session
        for tell in self._told:
            tell(session.info)

    async def ping(self) -> None:
        async with self.reading() as session:
            await session.execute(text("SELECT 1"))

    @property
    def connections_used(self) -> int:
        return self.engine.pool.checkedout()  # type: ignore[attr-defined, no-any-return]

    async def close(self) -> None:
        await self.engine.dispose()


def _check_the_idle(engine: AsyncEngine) -> None:
    """A connection that was used a moment ago is asked nothing but whether its socket is open; another one answers a
    ping before it is used again.
    """

    @event.listens_for(engine.sync_engine, "checkin")
    def note(_: object, record: ConnectionPoolEntry) -> None:
        record.info[USED_AT] = time.monotonic()

    @event.listens_for(engine.sync_engine, "checkout")
    def check(connection: DBAPIConnection, record: ConnectionPoolEntry, _: object) -> None:
        used_at = record.info.get(USED_AT)
        if used_at is None:
            return
        idle = time.monotonic() - used_at > IDLE_SECONDS
        if connection.driver_connection.is_closed() or (idle and not _answers(engine, connection)):
            raise InvalidatePoolError


def _answers(engine: AsyncEngine, connection: DBAPIConnection) -> bool:
    dialect = engine.sync_engine.dialect
    try:
        return dialect.do_ping(connection)
    except dialect.loaded_dbapi.Error:
        return False


class _reachable:  # noqa: N801 - reads as the phrase `with _reachable()`
    """Tell a lost or refused connection, and a database that has no time, from every other error."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, PoolTimeout):
            raise DatabaseBusy("All connections to the database are in use.") from error
        said = error.orig if isinstance(error, DBAPIError) else error
        code = getattr(said, "sqlstate", None) or ""
        if code in BUSY:  # whoever hears of it does not hear why
            log.warning("database_busy", sqlstate=code, statement=getattr(error, "statement", None))
            raise DatabaseBusy from error
        lost = isinstance(error, DBAPIError) and error.connection_invalidated
        if lost or isinstance(said, OSError | asyncpg.InterfaceError) or code.startswith(UNREACHABLE):
            raise DatabaseUnavailable from error
