"""Which databases the server works on, and what it says of the others."""

import pytest
from sqlalchemy import text

from app import upgrade
from app.db import Database
from app.errors import CannotStart
from tests import databases


@pytest.fixture
async def empty(postgres):
    """A database in which nobody has been yet."""
    async with databases.created(postgres, "empty") as url:
        yield url


async def asked(url, question):
    db = Database(url, connections=1)
    try:
        return await question(db)
    finally:
        await db.close()


async def run(url, statement):
    async def change(db):
        async with db.writing() as session:
            await session.execute(text(statement))

    await asked(url, change)


async def test_empty_database_is_refused_until_migrated(empty):
    """The way out of a missing schema is named, and works."""
    assert await asked(empty, upgrade.current) is None
    with pytest.raises(CannotStart, match=r"schema none .* Run `omoi migrate`\."):
        await asked(empty, upgrade.require_current)
    await upgrade.migrate(empty)
    await asked(empty, upgrade.require_current)


async def test_newer_database_is_refused(database_url):
    """A database that a later version migrated is left alone, and no migration is recommended for it."""
    await run(database_url, "UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(CannotStart, match=r"9999, which is newer") as refused:
        await asked(database_url, upgrade.require_current)
    assert "omoi migrate" not in str(refused.value)


async def test_migrating_again_changes_nothing(database_url):
    """A database that is up to date stays as it is."""
    await upgrade.migrate(database_url)
    await asked(database_url, upgrade.require_current)


async def test_failed_migration_is_explained_and_undone(empty):
    """A migration that meets what it cannot work with says what, in one sentence, and leaves nothing half done."""
    await run(empty, "CREATE TABLE users (precious text)")
    with pytest.raises(CannotStart, match=r'changed nothing: relation "users" already exists') as refused:
        await upgrade.migrate(empty)
    assert "\n" not in str(refused.value)
    assert await asked(empty, upgrade.current) is None

    async def tables(db):
        async with db.reading() as session:
            return list(await session.scalars(text("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")))

    assert await asked(empty, tables) == ["users"]
