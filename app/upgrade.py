"""The shape of the database: bring it to what this version knows, or say which command does."""

import asyncio
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, ProgrammingError

from app.db import Database
from app.errors import CannotStart

FOLDER = Path(__file__).parent.parent / "migrations"
OLDEST_POSTGRES = 15


def head() -> str:
    """The newest revision this version has."""
    newest = ScriptDirectory(str(FOLDER)).get_current_head()
    assert newest is not None
    return newest


async def current(db: Database) -> str | None:
    """The revision the database is at, or None for an empty one."""
    async with db.reading() as session:
        try:
            found: str | None = await session.scalar(text("SELECT version_num FROM alembic_version"))
        except ProgrammingError as error:
            if getattr(error.orig, "sqlstate", None) == "42P01":  # no such table
                return None
            raise
    return found


async def migrate(url: str) -> None:
    """Run every migration that is missing. Two at once are safe: the second waits and finds nothing to do."""
    config = Config()
    config.set_main_option("script_location", str(FOLDER))
    config.attributes["url"] = url
    try:
        # Alembic's environment runs a loop of its own, so it gets a thread of its own.
        await asyncio.to_thread(command.upgrade, config, "head")
    except DBAPIError as error:
        raise CannotStart(f"The migration failed and changed nothing: {_reason(error)}.") from error


async def require_known(db: Database) -> str | None:
    """The revision the database is at. Refuses one that a later version of OmoiOS has migrated."""
    found, wanted = await current(db), head()
    if found in (None, wanted):
        return found
    if found not in {revision.revision for revision in ScriptDirectory(str(FOLDER)).walk_revisions()}:
        raise CannotStart(
            f"The database is at schema {found}, which is newer than this version of OmoiOS knows ({wanted}). "
            "Start the version that migrated it, or a newer one."
        )
    return found


async def require_current(db: Database) -> None:
    """Refuse a database that is not what this version needs, naming the command that helps."""
    found, wanted = await require_known(db), head()
    if found != wanted:
        raise CannotStart(
            f"The database is at schema {found or 'none'} and this version needs {wanted}. Run `omoi migrate`."
        )


async def require_postgres(db: Database) -> None:
    """Refuse a Postgres that is too old or that may lose what it has acknowledged."""
    async with db.reading() as session:
        try:
            version = int(await session.scalar(text("SHOW server_version_num")) or 0) // 10_000
            fsync = await session.scalar(text("SHOW fsync"))
        except DBAPIError as error:
            raise CannotStart(
                f"The database at DATABASE_URL cannot be used: {_reason(error)}. Mend that, or DATABASE_URL."
            ) from error
    if version < OLDEST_POSTGRES:
        raise CannotStart(f"The database is Postgres {version}; OmoiOS needs {OLDEST_POSTGRES} or newer.")
    if fsync != "on":
        raise CannotStart("The database runs with fsync off and would lose acknowledged work. Switch fsync on.")


def _reason(error: DBAPIError) -> str:
    """What Postgres says, without its hints and without the statement."""
    return str(error.orig).partition("\n")[0].rpartition(">: ")[2].rstrip(".")
