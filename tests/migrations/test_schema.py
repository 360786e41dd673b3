"""The migrations and the models describe the same database, down to what its constraints say."""

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from app import upgrade
from app.models import Base
from tests import databases

CONSTRAINTS = """
    SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint
    WHERE connamespace = 'public'::regnamespace AND conrelid <> coalesce(to_regclass('alembic_version'), 0)
"""
INDEXES = "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public' AND tablename <> 'alembic_version'"
COLUMNS = """
    SELECT table_name, column_name, data_type, character_maximum_length, is_nullable, column_default,
           generation_expression
    FROM information_schema.columns WHERE table_schema = 'public' AND table_name <> 'alembic_version'
"""


@pytest.fixture
async def migrated(database_url):
    engine = create_async_engine(database_url, poolclass=NullPool)
    yield engine
    await engine.dispose()


@pytest.fixture
async def from_models(postgres, migrated):
    """A database that the models laid by themselves; only the clock, which is no table, is lent to it."""
    async with migrated.connect() as connection:
        clock = "SELECT pg_get_functiondef(oid) FROM pg_proc WHERE proname = 'omoi_now'"
        definition = await connection.scalar(text(clock))
    async with databases.created(postgres, "from_models") as url:
        engine = create_async_engine(url, poolclass=NullPool)
        async with engine.begin() as connection:
            await connection.exec_driver_sql(definition)
            await connection.run_sync(Base.metadata.create_all)
        yield engine
        await engine.dispose()


async def rows(engine, query):
    async with engine.connect() as connection:
        return sorted(tuple(map(str, row)) for row in await connection.execute(text(query)))


def differences(connection):
    options = {"compare_type": True, "compare_server_default": True}
    return compare_metadata(MigrationContext.configure(connection, opts=options), Base.metadata)


async def test_nothing_is_left_to_migrate(migrated):
    """Alembic's own comparison finds no table, column, index or key on one side only."""
    async with migrated.connect() as connection:
        assert await connection.run_sync(differences) == []


@pytest.mark.parametrize("query", [CONSTRAINTS, INDEXES, COLUMNS], ids=["constraints", "indexes", "columns"])
async def test_database_is_what_the_models_say(migrated, from_models, query):
    """CHECKs, keys, index definitions and column types agree too, which that comparison does not see."""
    found = await rows(migrated, query)
    assert len(found) > 20
    assert found == await rows(from_models, query)


def test_history_is_one_line():
    """Each migration follows the one before; there is one newest."""
    scripts = ScriptDirectory(str(upgrade.FOLDER))
    revisions = list(scripts.walk_revisions())
    assert len(scripts.get_heads()) == len(scripts.get_bases()) == 1
    assert not any(revision.is_branch_point or revision.is_merge_point for revision in revisions)


def test_migrations_do_not_know_the_models():
    """A migration says what it did then; importing the models would make it say what they are now."""
    for file in (upgrade.FOLDER / "versions").glob("*.py"):
        assert "import app" not in file.read_text()
        assert "from app" not in file.read_text()


async def test_clock_can_be_shifted(migrated):
    """Every stored moment comes from one function, which a session may shift."""
    async with migrated.connect() as connection:
        ask = text("SELECT omoi_now() - now()")
        assert (await connection.scalar(ask)).total_seconds() == 0
        await connection.execute(text("SET omoi.clock_shift = '-1 hour'"))
        assert (await connection.scalar(ask)).total_seconds() == -3600
