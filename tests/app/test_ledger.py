"""The ledger: what an answer used is written down once, whatever the database does meanwhile, or its loss is told."""

import asyncio
import contextlib

import pytest
import structlog
from sqlalchemy import text

from app import ledger
from app.ledger import Ledger
from tests.app.claimed import box
from tests.app.model_api import STOP, delta, start
from tests.app.test_db import cancel_waiting
from tests.servers import until

BEGUN = start(input_tokens=1_000)
END = delta(1_500) + STOP
ALL = (1_000, 1_500)
OWED = {"input": 1_000, "output": 1_500, "cache_read": 0, "cache_write": 0}


@pytest.fixture
async def mine(ada, apollo):
    return await box(ada, apollo)


@pytest.fixture
async def book(world, monkeypatch):
    """A ledger that tries again soon."""
    monkeypatch.setattr(ledger, "PAUSE_SECONDS", 0.02)
    monkeypatch.setattr(ledger, "SETTLED_SECONDS", 0.02)
    one = Ledger(world.server.db, world.server.bus)
    async with one.running():
        yield one
    assert not one.writing


@pytest.fixture
def logs():
    with structlog.testing.capture_logs() as entries:
        yield entries


def events(logs):
    return [entry["event"] for entry in logs]


async def used(mine):
    row = await mine.read()
    return row.input_tokens, row.output_tokens


async def all_used(mine):
    return await used(mine) == ALL


@contextlib.asynccontextmanager
async def held(world, table):
    """Nobody else writes there."""
    async with world.server.db.writing() as session:
        await session.execute(text(f"LOCK TABLE {table} IN EXCLUSIVE MODE"))
        yield


@contextlib.asynccontextmanager
async def refusing(world, table):
    """Every write fails there, and not because the database has no time."""
    async with world.server.db.writing() as session:
        await session.execute(text(f"ALTER TABLE {table} ADD CONSTRAINT refusing CHECK (false) NOT VALID"))
    yield
    async with world.server.db.writing() as session:
        await session.execute(text(f"ALTER TABLE {table} DROP CONSTRAINT refusing"))


@pytest.mark.parametrize("table", ["sandboxes", "spendings"])
async def test_a_busy_database_costs_no_usage(world, mine, book, logs, table):
    """A write that Postgres gives up, as it does after a time, is tried again until it succeeds."""
    tab = book.open(mine.id)
    async with held(world, table):
        tab.feed(BEGUN + END)
        await tab.close()
        for _ in range(2):
            await until(lambda: cancel_waiting(world.server.db))
        await until(lambda: events(logs).count("database_busy") >= 2)
        assert book.writing
    await until(lambda: all_used(mine))
    assert set(events(logs)) == {"database_busy"}


async def test_a_fault_costs_no_usage(world, mine, book, logs):
    """Whatever else goes wrong in a write is said once, and it is tried again too."""
    tab = book.open(mine.id)
    async with refusing(world, "spendings"):
        tab.feed(BEGUN + END)
        await tab.close()
        await until(lambda: "usage_not_written" in events(logs))
        assert await used(mine) == (0, 0)
    await until(lambda: all_used(mine))
    assert events(logs) == ["usage_not_written"]


async def test_what_is_lost_is_told(world, mine, book, logs, monkeypatch):
    """The tries are counted; behind the last the log says how much nobody has counted."""
    monkeypatch.setattr(ledger, "TRIES", 3)
    tab = book.open(mine.id)
    async with refusing(world, "spendings"):
        tab.feed(BEGUN + END)
        await tab.close()
        await until(lambda: not book.writing)
    assert logs[1:] == [{"event": "usage_lost", "log_level": "error", "sandbox": str(mine.id), **OWED}]


async def test_what_is_not_written_at_the_end_is_told(world, mine, logs, monkeypatch):
    """A server that stops while the database has no time says how many answers it leaves uncounted."""
    monkeypatch.setattr(ledger, "LAST_SECONDS", 0.02)
    monkeypatch.setattr(ledger, "SETTLED_SECONDS", 0.02)
    book = Ledger(world.server.db, world.server.bus)
    async with held(world, "spendings"):
        async with book.running():
            tab = book.open(mine.id)
            tab.feed(BEGUN + END)
            await tab.close()
        assert logs == [{"event": "usage_lost", "log_level": "error", "answers": 1}]
    await until(lambda: not book.writing)


async def test_an_end_in_the_turn_in_which_a_part_is_written(mine, book, monkeypatch):
    """An answer that ends in the very moment in which a part of it has been written is counted to its end."""
    monkeypatch.setattr(ledger, "PART_SECONDS", 0.0)
    tab = book.open(mine.id)
    tab.feed(BEGUN)
    [part] = book.writing
    while not part.done():  # noqa: ASYNC110 - seen in the very turn, before whoever waits for it is told
        await asyncio.sleep(0)
    tab.meter.feed(END)
    await tab.close()
    await until(lambda: all_used(mine))


async def test_an_end_while_a_part_is_written(world, mine, book, monkeypatch):
    """What comes while the database has no time for a part is written behind it, and the part only once."""
    monkeypatch.setattr(ledger, "PART_SECONDS", 0.0)
    tab = book.open(mine.id)
    async with held(world, "spendings"):
        tab.feed(BEGUN)
        await asyncio.wait(book.writing, timeout=0)
        tab.feed(END)
        await tab.close()
        assert len(book.writing) == 1
    await until(lambda: all_used(mine))
    await until(lambda: not book.writing)
    assert await used(mine) == ALL
