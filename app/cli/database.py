"""The database that a command works on: the one DATABASE_URL names, or the embedded one of the data folder."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from app import postgres_folder, upgrade
from app.db import Database, DatabaseUnavailable
from app.errors import CannotStart
from app.postgres import EmbeddedPostgres, attached
from app.settings import Settings

COMMAND_CONNECTIONS = 2
HOLDER = "omoi up on "  # the address of the server follows
POSTGRES_SCHEMES = ("postgres", "postgresql", "postgresql+asyncpg")


@contextlib.asynccontextmanager
async def owned(settings: Settings, *, holder: str) -> AsyncIterator[str]:
    """For a server: the embedded database belongs to it, is migrated by it, and is brought back when it dies."""
    if settings.database_url:
        url = external(settings.database_url)
        await _check(url)
        yield url
        return
    postgres = EmbeddedPostgres(settings.data, holder=holder)
    await postgres.start()
    watching = asyncio.create_task(postgres.watch())
    try:
        await _bring_up_to_date(postgres.url)
        yield postgres.url
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await postgres.stop()


@contextlib.asynccontextmanager
async def borrowed(settings: Settings, *, holder: str) -> AsyncIterator[Database]:
    """For a command on the server's own machine, whether or not the server runs."""
    async with contextlib.AsyncExitStack() as stack:
        if settings.database_url:
            url = external(settings.database_url)
            await _check(url)
        else:
            url = await stack.enter_async_context(attached(settings.data, holder=holder))
            await _bring_up_to_date(url)
        db = Database(url, connections=COMMAND_CONNECTIONS)
        stack.push_async_callback(db.close)
        yield db


def address_of_server(settings: Settings) -> str | None:
    """Where the server answers that owns the embedded database in this moment."""
    return str(postgres_folder.read_claim(settings.data).get("holder", "")).partition(HOLDER)[2] or None


def external(text: str) -> str:
    """The URL as SQLAlchemy takes it; other tools' spellings of the same are understood."""
    try:
        url = make_url(text)
    except (ArgumentError, ValueError) as error:
        raise CannotStart("DATABASE_URL is no database address, e.g. postgresql://user:password@host/name.") from error
    if url.drivername not in POSTGRES_SCHEMES:
        raise CannotStart(f"DATABASE_URL names {url.drivername}; OmoiOS runs on Postgres, e.g. postgresql://host/name.")
    query = dict(url.query)
    if "sslmode" in query:
        query["ssl"] = query.pop("sslmode")
    url = url.set(drivername="postgresql+asyncpg", query=query)
    try:
        url.get_dialect()().create_connect_args(url)
    except ArgumentError as error:
        raise _useless(error) from error
    return url.render_as_string(hide_password=False)


async def reachable(db: Database, url: str) -> None:
    try:
        await upgrade.require_postgres(db)
    except DatabaseUnavailable as error:
        raise CannotStart(
            f"The database {_place(make_url(url))} cannot be reached: {error.__cause__}. Check DATABASE_URL."
        ) from error
    except (TypeError, ValueError) as error:  # of asyncpg's, about what follows the question mark
        raise _useless(error) from error


def _place(url: URL) -> str:
    """Where it is, without who asks and with what password."""
    host, port = url.query.get("host", url.host or "localhost"), url.query.get("port", url.port or 5432)
    return f"{url.database} on {host}:{port}"


def _useless(error: Exception) -> CannotStart:
    return CannotStart(f"DATABASE_URL has a part that is of no use here: {error}.")


async def _check(url: str) -> None:
    db = Database(url, connections=1)
    try:
        await reachable(db, url)
        await upgrade.require_current(db)
    finally:
        await db.close()


async def _bring_up_to_date(url: str) -> None:
    """The embedded database migrates itself; nobody else uses it."""
    db = Database(url, connections=1)
    try:
        if await upgrade.require_known(db) != upgrade.head():
            await upgrade.migrate(url)
        await upgrade.require_current(db)
    finally:
        await db.close()
