"""Feeds: a stream is read once for all who follow it, and none of them misses anything or hears it twice."""

import asyncio
from contextlib import aclosing, asynccontextmanager

import pytest
import structlog
from sqlalchemy import text

from app import ids, streams
from app.bus import EVERYTHING
from app.db import DatabaseUnavailable
from app.enums import SandboxEventType
from app.errors import Forbidden, NotFound
from app.feeds import Ear, Feeds
from app.models import Activity, Event
from app.readers import follow
from app.sources import Source
from tests.schema import boxes
from tests.servers import PATIENCE_SECONDS, until
from tests.world import record


@pytest.fixture
def source(apollo):
    stream_id = ids.decode(apollo)[1]
    return Source(stream_id=stream_id, project_id=stream_id, table=Activity)


@pytest.fixture
async def reading(world):
    async with running(world.server.db, world.server.bus) as reading:
        yield reading


@asynccontextmanager
async def running(db, bus, *, window=0.0, poll=60.0):
    reading = Feeds(db, bus, window_seconds=window, poll_seconds=poll)
    async with reading.running():
        yield reading


class Counting:
    """The database, counting the sessions that are taken for reading; some of them are lost at their very end."""

    def __init__(self, db, *, lost=()):
        self._db = db
        self._lost = lost
        self.background = asyncio.Semaphore(4)
        self.turns = 0

    @asynccontextmanager
    async def reading(self):
        self.turns += 1
        turn = self.turns
        async with self._db.reading() as session:
            yield session
        if turn in self._lost:
            raise DatabaseUnavailable


async def execute(world, statement):
    async with world.server.db.writing() as session:
        await session.execute(text(statement))


async def seqs(batches, count):
    found = []
    while len(found) < count:
        found += [row.seq for row in (await anext(batches)).rows]
    return found


async def up_to(batches, seq):
    """The next batches, until one ends there."""
    found = [await anext(batches)]
    while found[-1].end.seq < seq:
        found.append(await anext(batches))
    return found


async def bus_heard(bus):
    """Until whoever listens has taken all rings."""
    await until(lambda: not any(bell._rung.is_set() for bells in bus._bells.values() for bell in bells))


async def test_many_readers_cost_one_read(world, source):
    """Fifty who wait at the end of a stream share one look at the database for each batch."""
    db = Counting(world.server.db)
    async with running(db, world.server.bus) as reading:
        readers = [follow(reading, source, None, Ear()) for _ in range(50)]
        for reader in readers:
            await seqs(reader, 1)
        turns = db.turns
        waiting = [asyncio.create_task(seqs(reader, 2)) for reader in readers]
        await asyncio.sleep(0)
        await record(world.server, source.stream_id, "two", "three")
        assert await asyncio.gather(*waiting) == [[2, 3]] * 50
        assert db.turns <= turns + 2
        for reader in readers:
            await reader.aclose()


async def test_nothing_falls_between_reading_and_listening(world, source, reading):
    """Whoever comes while others write has everything once and in order, at whatever moment they come."""
    total = 300

    async def keep_writing():
        for number in range(total - 1):
            await record(world.server, source.stream_id, str(number))

    async def reader():
        async with aclosing(follow(reading, source, None, Ear())) as batches:
            return await seqs(batches, total)

    writing = asyncio.create_task(keep_writing())
    readers = []
    while not writing.done():
        readers.append(asyncio.create_task(reader()))
        await asyncio.sleep(0.002)
    assert all(found == list(range(1, total + 1)) for found in await asyncio.gather(*readers))


async def test_what_could_not_be_handed_on_is_read_again(world, source):
    """A connection that is lost as the reader gives it back takes its rows along, but not the reader's place."""
    db = Counting(world.server.db, lost={2, 3, 4})
    async with (
        running(db, world.server.bus) as reading,
        aclosing(follow(reading, source, None, Ear())) as batches,
    ):
        assert await seqs(batches, 1) == [1]
        await record(world.server, source.stream_id, "met while connections were lost")
        assert await seqs(batches, 1) == [2]


async def test_a_lost_ring_costs_one_poll(world, source):
    """Rows that nobody was told of are found by the question that is asked for all streams together."""
    async with (
        running(world.server.db, world.server.bus, poll=0.05) as reading,
        aclosing(follow(reading, source, None, Ear())) as batches,
    ):
        assert await seqs(batches, 1) == [1]
        await record(world.server, source.stream_id, "two", heard=False)
        assert await seqs(batches, 1) == [2]


async def test_what_goes_wrong_in_the_poll_does_not_end_it(world, source):
    """Whatever it was: it is logged, and the next turn finds what was lost."""
    with structlog.testing.capture_logs() as logs:
        async with (
            running(world.server.db, world.server.bus, poll=0.05) as reading,
            aclosing(follow(reading, source, None, Ear())) as batches,
        ):
            assert await seqs(batches, 1) == [1]
            await execute(world, "ALTER TABLE streams RENAME TO mislaid")
            await until(lambda: any(entry["event"] == "stream_poll_failed" for entry in logs))
            await execute(world, "ALTER TABLE mislaid RENAME TO streams")
            await record(world.server, source.stream_id, "two", heard=False)
            assert await seqs(batches, 1) == [2]


async def test_a_ring_of_what_was_read_costs_nothing(world, source):
    """One's own comes back by way of Redis; after a gap, in which any may have been lost, it is looked all the same."""
    db, bus = Counting(world.server.db), world.server.bus
    async with running(db, bus, poll=3600) as reading, aclosing(follow(reading, source, None, Ear())) as batches:
        assert await seqs(batches, 1) == [1]
        turns = db.turns
        for seq in (2, 3, 4):
            await record(world.server, source.stream_id, str(seq))
            assert await seqs(batches, 1) == [seq]
            bus._hear(f"{streams.topic(source.stream_id)} {seq}")
            await bus_heard(bus)
        assert db.turns == turns + 3
        await record(world.server, source.stream_id, "lost", heard=False)
        bus._hear(EVERYTHING)
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await seqs(batches, 1) == [5]


async def test_what_happens_within_the_window_comes_together(world, source):
    """Three changes in a row, each committed by itself, are one batch."""
    async with (
        running(world.server.db, world.server.bus, window=0.3) as reading,
        aclosing(follow(reading, source, None, Ear())) as batches,
    ):
        assert await seqs(batches, 1) == [1]
        following = asyncio.create_task(anext(batches))
        for number in range(3):
            await record(world.server, source.stream_id, str(number))
        assert [row.seq for row in (await following).rows] == [2, 3, 4]


async def test_who_may_hear_no_more_gets_none_of_what_was_read(world, source, reading):
    """The end of a right is looked at after reading: what came later cannot be among what is sent."""
    ear = Ear()
    async with aclosing(follow(reading, source, None, ear)) as batches:
        assert await seqs(batches, 1) == [1]
        following = asyncio.create_task(anext(batches))
        await asyncio.sleep(0)
        await record(world.server, source.stream_id, "two")
        ear.end(Forbidden("Gone."))
        with pytest.raises(Forbidden):
            await following


async def test_a_restored_backup_is_told_to_who_follows(world, source):
    """Another epoch: the reader is reset, and hears the stream from its beginning."""
    async with (
        running(world.server.db, world.server.bus, poll=0.05) as reading,
        aclosing(follow(reading, source, None, Ear())) as batches,
    ):
        assert await seqs(batches, 1) == [1]
        await execute(world, "UPDATE streams SET epoch = 'ffffffffffff'")
        batch = await anext(batches)
        assert "restored" in batch.reset.reason
        assert ([row.seq for row in batch.rows], batch.end.epoch) == ([1], "ffffffffffff")


async def test_a_stream_that_went_back_is_told_to_who_follows(world, source):
    """A database that has lost its newest rows, with the epoch that it had, is a reset too."""
    async with running(world.server.db, world.server.bus, poll=0.05) as reading:
        await record(world.server, source.stream_id, "two", "three")
        async with aclosing(follow(reading, source, None, Ear())) as batches:
            assert await seqs(batches, 3) == [1, 2, 3]
            await execute(world, "DELETE FROM activities WHERE seq > 1")
            await execute(world, "UPDATE streams SET last_seq = 1")
            batch = await anext(batches)
            assert "ahead" in batch.reset.reason
            assert [row.seq for row in batch.rows] == [1]


async def test_what_is_dropped_while_it_is_read_is_told(world, source, reading, monkeypatch):
    """Who was about to read it hears where the stream begins by now, and not merely what is left."""
    monkeypatch.setattr("app.feeds.PAGE", 1)
    await record(world.server, source.stream_id, "two", "three", "four")
    async with aclosing(follow(reading, source, None, Ear())) as batches:
        assert await seqs(batches, 1) == [1]
        await execute(world, "DELETE FROM activities WHERE seq < 4")
        await execute(world, "UPDATE streams SET first_seq = 4")
        batch = await anext(batches)
    assert (batch.reset.first_available_seq, [row.seq for row in batch.rows]) == (4, [4])


async def test_who_has_caught_up_once_stays_so(world, source):
    """Also when more happens at once than one batch holds; only a reset begins it anew."""
    async with (
        running(world.server.db, world.server.bus, poll=0.05) as reading,
        aclosing(follow(reading, source, None, Ear())) as batches,
    ):
        told = [await anext(batches)]
        await record(world.server, source.stream_id, *map(str, range(150)))
        told += [await anext(batches), await anext(batches)]
        await execute(world, "UPDATE streams SET epoch = 'ffffffffffff'")
        told += [await anext(batches), await anext(batches)]
    assert [len(batch.rows) for batch in told] == [1, 100, 50, 100, 51]
    assert [batch.caught_up for batch in told] == [True, True, True, False, True]


async def test_a_cursor_that_another_process_gave_is_believed(world, source, reading):
    """It may lie ahead of what this process has read; only what the database does not have is refused."""
    async with reading.open(source) as feed:
        await record(world.server, source.stream_id, "two", heard=False)
        known = streams.Cursor(feed.tip.epoch, 2)
        assert await feed.start(known) == (known, None)
        place, reset = await feed.start(streams.Cursor(feed.tip.epoch, 3))
        assert (place.seq, "ahead" in reset.reason) == (0, True)


async def test_a_reader_who_wants_little_is_moved_on(world, ada, apollo, reading):
    """What is not wanted is passed over, and the cursor with it, from memory as from the database."""
    box = await boxes.running(ada, apollo)
    project_id, errors = ids.decode(apollo)[1], frozenset({SandboxEventType.ERROR})
    source = Source(stream_id=box.key, project_id=project_id, table=Event, types=errors)
    async with aclosing(follow(reading, source, None, Ear())) as batches:
        first = await anext(batches)
        await box.report(*(box.event("LOG", {"text": "x"}) for _ in range(150)))
        await box.did("ERROR", {"text": "No."})
        second = await anext(batches)
        async with aclosing(follow(reading, source, first.end, Ear())) as late:
            again = await anext(late)

    assert ([row.seq for row in first.rows], first.caught_up) == ([], True)
    assert [row.seq for row in second.rows] == [row.seq for row in again.rows] == [153]
    assert second.end.seq == again.end.seq == 153


async def test_a_payload_has_a_largest_size(ada, apollo, reading, monkeypatch):
    """From memory as from the database; what is larger by itself comes alone, and nothing is left out."""
    monkeypatch.setattr("app.sources.PAGE_BYTES", 8_000)
    box = await boxes.running(ada, apollo)
    source = Source(stream_id=box.key, project_id=ids.decode(apollo)[1], table=Event)
    async with aclosing(follow(reading, source, None, Ear())) as batches:
        begun = await anext(batches)
        await box.report(*(box.event("LOG", {"text": "x" * size}) for size in (3_000, 3_000, 3_000, 20_000, 3_000)))
        told = await up_to(batches, 7)
    async with (
        running(ada.world.server.db, ada.world.server.bus) as anew,
        aclosing(follow(anew, source, begun.end, Ear())) as batches,
    ):
        again = await up_to(batches, 7)

    for pages in (told, again):
        assert [[row.seq for row in batch.rows] for batch in pages] == [[3, 4], [5], [6], [7]]
    assert [batch.caught_up for batch in again] == [False, False, False, True]


async def test_a_feed_ends_with_its_last_reader(world, source, reading):
    """Nothing stays of it: no task, no bell."""
    listeners = world.server.bus.listeners
    async with aclosing(follow(reading, source, None, Ear())) as batches:
        await anext(batches)
        assert (reading.count, world.server.bus.listeners) == (1, listeners + 1)
    await until(lambda: world.server.bus.listeners == listeners)
    assert reading.count == 0


async def test_a_stream_that_is_not_there_is_refused(reading, source):
    """And the next reader asks anew."""
    unknown = Source(stream_id=ids.new(), project_id=source.project_id, table=Activity)
    for _ in range(2):
        with pytest.raises(NotFound):
            await anext(follow(reading, unknown, None, Ear()))
    assert reading.count == 0
