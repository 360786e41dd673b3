"""`omoi migrate`, and servers that meet a database that was not migrated for them."""

import asyncio
from pathlib import Path

import asyncpg
import pytest

from app import upgrade
from tests import databases
from tests.cli.conftest import refused
from tests.servers import omoi, until, up

NEWEST = max(path.name[:4] for path in Path(upgrade.__file__).parents[1].glob("migrations/versions/0*.py"))


@pytest.fixture
async def empty(postgres):
    """A database of the operator's in which nobody has been yet."""
    async with databases.created(postgres, "operators") as url:
        yield url


async def test_from_nothing_to_a_server(empty, data):
    """A server refuses an empty database, names the command, and starts once that has run; a link comes once."""
    place = {"DATABASE_URL": empty, "OMOI_DATA": data}
    assert "Run `omoi migrate`." in refused(await omoi("up", **place), 2)
    assert (await omoi("migrate", **place)).out == f"Migrated from none to {NEWEST}.\n"
    assert (await omoi("migrate", **place)).out == f"The database is at schema {NEWEST}.\n"
    async with up(data, DATABASE_URL=empty) as first:
        assert (await first.http.get(first.link)).status_code == 303
    async with up(data, DATABASE_URL=empty) as second:
        assert not any("Sign in" in line for line in second.said)
    assert not (data / "postgres").exists()


WAITING = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"


async def test_two_at_once(empty, data):
    """Release steps of several replicas at the same time: one migrates, the others wait for it, all succeed."""
    gate = await asyncpg.connect(empty.replace("+asyncpg", ""))
    await gate.execute("SELECT pg_advisory_lock(hashtext('omoios migrations'))")
    steps = [asyncio.create_task(omoi("migrate", DATABASE_URL=empty, OMOI_DATA=data)) for _ in range(2)]
    await until(lambda: all_wait(gate))
    await gate.close()
    assert [(await step).code for step in steps] == [0, 0]


async def all_wait(connection):
    return await connection.fetchval(WAITING) == 2


def test_newer_database(command, database_url, data, postgres):
    """What a later version migrated is left alone, by the server and by `omoi migrate`."""
    place = {"DATABASE_URL": database_url, "OMOI_DATA": data}
    asyncio.run(databases.run(database_url, "UPDATE alembic_version SET version_num = '9999'"))
    for words in (["migrate"], ["user", "list"]):
        assert "9999, which is newer" in refused(command(*words, **place), 2)


def test_older_database(command, database_url, data):
    """Commands work on no older schema either; they say what to do."""
    asyncio.run(databases.run(database_url, "DELETE FROM alembic_version"))
    done = command("user", "list", DATABASE_URL=database_url, OMOI_DATA=data)
    assert refused(done, 2).endswith("Run `omoi migrate`.")


def test_failing_migration(command, empty, data):
    """A database with tables of somebody else's is named in one sentence and left as it was."""
    asyncio.run(databases.run(empty, "CREATE TABLE users (precious text)"))
    message = refused(command("migrate", DATABASE_URL=empty, OMOI_DATA=data), 2)
    assert 'relation "users" already exists' in message


def test_embedded_database_migrates_itself(command, data):
    """Any command on the embedded database finds, or makes, the schema it needs."""
    assert command("migrate", OMOI_DATA=data).out == f"The database is at schema {NEWEST}.\n"
    assert command("user", "list", "--json", OMOI_DATA=data).out == "[]\n"
