"""The database: every way of losing it, or of waiting in vain, is one sentence; every other error stays what it is."""

import asyncio
import contextlib

import pytest
import structlog
from sqlalchemy import text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError

from app.db import STATEMENT_SECONDS, Database, DatabaseBusy, DatabaseUnavailable
from tests.servers import until
from tests.world import World

ARCHIVE = "mutation($input: ArchiveProjectInput!) { archiveProject(input: $input) { errors { code } } }"
CANCEL_WAITING = """
    SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity
    WHERE datname = current_database() AND wait_event_type = 'Lock'
"""


async def cancel_waiting(db):
    """Who waits for a lock is told that its time is over; how many those are."""
    async with db.reading() as session:
        return await session.scalar(text(CANCEL_WAITING))


@pytest.fixture
async def db(database_url):
    one = Database(database_url, connections=2)
    yield one
    await one.close()


async def run(db, statement):
    async with db.writing() as session:
        result = await session.execute(text(statement))
        return result.scalar() if result.returns_rows else None


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT nothing",
        "SELECT * FROM nowhere",
        "SELECT 1/0",
        "SELEC",
        "INSERT INTO users (id) VALUES (gen_random_uuid())",
        "INSERT INTO memberships SELECT gen_random_uuid(), gen_random_uuid(), 'king'",
        "DO $$ BEGIN RAISE SQLSTATE '40002'; END $$",
    ],
)
async def test_faults_of_ours_stay_faults(db, statement):
    """An error in a statement is no lost connection; the pool is as good as before."""
    with pytest.raises(DBAPIError):
        await run(db, statement)
    assert await run(db, "SELECT 1") == 1


@pytest.mark.parametrize("code", ["57014", "55P03", "40P01", "40001"])
async def test_no_time_is_one_sentence(db, code):
    """A statement that Postgres gives up for the sake of others, or of time, is told as DatabaseBusy: try again."""
    with (
        structlog.testing.capture_logs() as logs,
        pytest.raises(DatabaseBusy, match=r"others were in its way\. Try again in a moment"),
    ):
        await run(db, f"DO $$ BEGIN RAISE SQLSTATE '{code}'; END $$")
    [told] = logs
    assert (told["event"], told["sqlstate"]) == ("database_busy", code)
    assert "RAISE" in told["statement"]
    assert await run(db, "SELECT 1") == 1


@pytest.mark.parametrize("limit", ["statement_timeout", "lock_timeout"])
async def test_limits_of_time_are_one_sentence(db, another, limit):
    """Postgres' own limits, met by waiting for a lock."""
    await run(db, "CREATE TABLE wanted (one int)")

    async def count():
        async with db.reading() as session:
            await session.execute(text(f"SET LOCAL {limit} = 50"))
            await session.execute(text("SELECT * FROM wanted"))

    async with another.writing() as session:
        await session.execute(text("LOCK TABLE wanted"))
        with pytest.raises(DatabaseBusy):
            await count()
    assert await run(db, "SELECT count(*) FROM wanted") == 0


async def test_those_who_wait_in_a_ring(db):
    """Of two that wait for each other one is told DatabaseBusy, and the other goes on."""
    await run(db, "CREATE TABLE ones (one int)")
    await run(db, "CREATE TABLE twos (two int)")
    both = asyncio.Barrier(2)

    async def lock(first, second):
        async with db.writing() as session:
            await session.execute(text("SET LOCAL deadlock_timeout = 50"))
            await session.execute(text(f"LOCK TABLE {first}"))
            await both.wait()
            await session.execute(text(f"LOCK TABLE {second}"))

    ended = await asyncio.gather(lock("ones", "twos"), lock("twos", "ones"), return_exceptions=True)
    assert [type(one) for one in ended if one is not None] == [DatabaseBusy]


END_OTHERS = """
    SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
    WHERE pid <> pg_backend_pid() AND datname = current_database()
"""


@pytest.fixture
async def another(database_url):
    one = Database(database_url, connections=1)
    yield one
    await one.close()


@pytest.mark.parametrize("ends", ["SELECT pg_terminate_backend(pg_backend_pid())", None], ids=["asking", "between"])
async def test_lost_connection_is_one_sentence(db, another, ends):
    """A connection that goes in a transaction, whenever it does, is told as DatabaseUnavailable; the next one works."""

    async def work():
        async with db.writing() as session:
            await session.execute(text("SELECT 1"))
            await (session.execute(text(ends)) if ends else run(another, END_OTHERS))

    with pytest.raises(DatabaseUnavailable, match="cannot be reached right now"):
        await work()
    assert await run(db, "SELECT 1") == 1


async def test_what_was_read_counts(db, another):
    """A reader that has its rows is not told of a connection that went afterwards: a stream would lose their place."""
    async with db.reading() as session:
        found = await session.scalar(text("SELECT 42"))
        await run(another, END_OTHERS)
    assert found == 42
    assert db.connections_used == 0
    assert await run(db, "SELECT 1") == 1


async def driver(session):
    return (await (await session.connection()).get_raw_connection()).driver_connection


async def test_connection_lost_in_the_pool_is_replaced(db, another):
    """Who finds all connections of the pool dead gets a new one, and notices nothing."""
    async with db.reading() as one, db.reading() as two:
        lost = [await driver(one), await driver(two)]
    await run(another, END_OTHERS)
    await until(lambda: all(connection.is_closed() for connection in lost))
    for _ in range(3):
        assert await run(db, "SELECT 1") == 1


async def test_connection_that_was_idle_is_asked_first(db, monkeypatch):
    """Nothing may have told this side that the other one is gone; who was heard a moment ago is not asked."""
    asked, dialect = [], db.engine.sync_engine.dialect
    ping = dialect.do_ping
    monkeypatch.setattr(dialect, "do_ping", lambda connection: asked.append(connection) or ping(connection))
    for _ in range(3):
        assert await run(db, "SELECT 1") == 1
    assert asked == []
    monkeypatch.setattr("app.db.IDLE_SECONDS", -1.0)
    for _ in range(3):
        assert await run(db, "SELECT 1") == 1
    assert len(asked) == 3


@pytest.mark.parametrize(
    "change",
    [
        {"host": "/nowhere"},
        {"host": "127.0.0.1", "port": "1"},
    ],
)
async def test_refused_connection_is_one_sentence(database_url, change):
    """A server that is not there is DatabaseUnavailable too."""
    db = Database(make_url(database_url).update_query_dict(change).render_as_string(), connections=1)
    with pytest.raises(DatabaseUnavailable):
        await db.ping()
    await db.close()


async def test_full_server_is_one_sentence(database_url, db):
    """A Postgres that has no connection left for us answers later."""
    url = make_url(database_url)
    await run(db, "CREATE ROLE poor LOGIN CONNECTION LIMIT 0")
    poor = Database(url.set(username="poor").render_as_string(), connections=1)
    with pytest.raises(DatabaseUnavailable):
        await poor.ping()
    await poor.close()
    await run(db, "DROP ROLE poor")


async def test_empty_pool_is_one_sentence(database_url, settings, monkeypatch):
    """When all connections are busy a request waits, a while, and is then told so; nothing of it is a fault of ours."""
    monkeypatch.setattr("app.db.POOL_WAIT_SECONDS", 0.2)
    world = World(settings, database_url)
    async with world.running():
        ada = await world.account("ada")
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(settings.database_connections):
                session = await stack.enter_async_context(world.server.db.reading())
                await session.scalar(text("SELECT 1"))
            answer = await ada("{ projects { nodes { id } } }")
            assert "All connections to the database are in use" in answer.errors[0]["message"]
            assert "requestId" in answer.errors[0]["extensions"]
        assert (await ada("{ projects { nodes { id } } }")).status == 200


async def test_a_lock_that_others_hold_is_one_sentence(world, ada, apollo):
    """Who wants to change what somebody else keeps locked for too long is told to try again, not of a fault of ours."""
    async with world.server.db.writing() as session:
        await session.execute(text("LOCK TABLE projects IN EXCLUSIVE MODE"))
        asking = asyncio.create_task(ada(ARCHIVE, input={"projectId": apollo}))
        await until(lambda: cancel_waiting(world.server.db))
        [error] = (await asking).errors
    assert "others were in its way. Try again in a moment." in error["message"]
    assert (await ada.do("archiveProject", "project { id }", projectId=apollo))["id"] == apollo


async def test_statements_have_a_limit(db):
    """No statement, and no wait for a lock, lasts longer than a query may."""
    for name in ("statement_timeout", "lock_timeout"):
        assert await run(db, f"SHOW {name}") == f"{STATEMENT_SECONDS}s"
    assert await run(db, "SHOW timezone") == "UTC"


async def test_errors_hold_no_values(db):
    """What people write does not end up in the log by way of an exception."""
    async with db.reading() as session:
        with pytest.raises(DBAPIError) as error:
            await session.execute(text("SELECT cast(:title AS text), 1/0"), {"title": "canary"})
    assert "canary" not in str(error.value)


async def test_commits_are_told(db):
    """Who asked is told after each commit, with what the transaction left, and never of one that failed."""
    told = []
    db.after_commit(told.append)
    async with db.writing() as session:
        session.info["left"] = 1
        assert not told
    with contextlib.suppress(ZeroDivisionError):
        async with db.writing() as session:
            session.info["left"] = 2
            raise ZeroDivisionError
    assert [dict(left)["left"] for left in told] == [1]


async def test_nothing_is_kept_of_a_failed_transaction(db):
    """Either everything or nothing, also when the caller is cancelled in the middle."""
    await run(db, "CREATE TABLE kept (one int)")

    written = asyncio.Event()

    async def half():
        async with db.writing() as session:
            await session.execute(text("INSERT INTO kept VALUES (1)"))
            written.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(half())
    await written.wait()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert await run(db, "SELECT count(*) FROM kept") == 0
    assert db.connections_used == 0
