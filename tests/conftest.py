"""What every test stands on: one embedded Postgres a run, a migrated database cloned for each test, a server on it."""

import contextlib

import pytest
from sqlalchemy import event

from app import health
from app.settings import Settings
from tests import databases
from tests.world import World, project

CLOCKWORK = ("access_tokens", "loop_runs", "DELETE FROM idempotency_keys")  # runs by itself, at any moment


@pytest.fixture(scope="session")
async def postgres():
    """A real Postgres, by its address."""
    async with databases.cluster() as url:
        yield url


@pytest.fixture
async def database_url(postgres):
    """An empty, migrated database of this test's own."""
    async with databases.cloned(postgres) as url:
        yield url


@pytest.fixture
def settings(tmp_path):
    return Settings(data=tmp_path, stream_poll_seconds=5.0, orchestrator_enabled=False)


@pytest.fixture
async def world(database_url, settings):
    """A server beside another one that hands out the work, as far as anybody can tell."""
    async with World(settings, database_url).running() as running:
        async with running.server.db.writing() as session:
            await health.note_run(session, "dispatch", "elsewhere", milliseconds=1.0, error=None)
        yield running


@pytest.fixture
async def ada(world):
    """Somebody with an account."""
    return await world.account("ada")


@pytest.fixture
async def bob(world):
    """Somebody else, who shares nothing with Ada."""
    return await world.account("bob")


@pytest.fixture
async def apollo(ada):
    """A project of Ada's, by its id."""
    return await project(ada)


@pytest.fixture
def statements(world):
    """Opens a block and lists the SQL of what is asked inside, without the server's own clockwork."""
    return lambda: _recorded(world.server.db.engine.sync_engine)


@contextlib.contextmanager
def _recorded(engine):
    made = []

    def note(connection, cursor, statement, *rest):
        if not any(table in statement for table in CLOCKWORK):
            made.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    try:
        yield made
    finally:
        event.remove(engine, "before_cursor_execute", note)


@pytest.fixture
def later(world):
    """Opens a block in which the database's clock is so much further."""
    return lambda shift: shifted(world.server.db.engine.sync_engine, shift)


@contextlib.contextmanager
def shifted(engine, shift):
    def shift_clock(connection):
        connection.exec_driver_sql(f"SET LOCAL omoi.clock_shift = '{shift}'")

    event.listen(engine, "begin", shift_clock)
    try:
        yield
    finally:
        event.remove(engine, "begin", shift_clock)
