"""Subscribing at any moment while others write, ten thousand times: each has everything once, in order, and at once."""

import asyncio
import collections
import contextlib
import random

import orjson
import pytest

from app import feeds, ids, readers, streams
from app.feeds import Ear, Feeds
from app.models import Activity, Stream
from app.sources import Source
from app.streams import Cursor
from resolvers.live import Live
from schema.hub import Hub, Room
from schema.wire import Answer
from tests.world import project, record

TIMES, AT_ONCE = 10_000, 100
STREAMS = 4
NEVER = 3600.0
SECONDS = 120


@pytest.fixture
def small(monkeypatch):
    """Pages, reads and memories so small that every one of their borders is crossed all the time."""
    monkeypatch.setattr(feeds, "PAGE", 7)
    monkeypatch.setattr(feeds, "READ", 5)
    monkeypatch.setattr(feeds, "RECENT_ROWS", 12)


class Race:
    """Streams that grow as fast as they can, and those who come to them."""

    def __init__(self, world, reading, reader, tips):
        self.world, self.reading, self.reader = world, reading, reader
        self.hub = Hub(Room(answers=256, size=1 << 20))
        self.tips = dict(tips)  # the newest place of each stream that was committed
        self.chance = random.Random(1)
        self.left = TIMES
        self.met = collections.Counter()

    async def write(self, stream_id):
        while True:
            entries = self.chance.randint(1, 3)
            await record(self.world.server, stream_id, *["x"] * entries)
            self.tips[stream_id] = Cursor(self.tips[stream_id].epoch, self.tips[stream_id].seq + entries)
            await asyncio.sleep(self.chance.choice((0, 0.001, 0.01)))

    async def come_and_go(self):
        while self.left:
            self.left -= 1
            stream_id, tip = self.chance.choice(list(self.tips.items()))
            begin = max(0, tip.seq - self.chance.choice((0, 0, 1, 5, 11, 12, 13, 40)))
            goal = tip.seq + self.chance.choice((0, 1, 2, 5))
            found = [begin]
            async with contextlib.aclosing(self.follow(stream_id, Cursor(tip.epoch, begin), found)) as batches:
                async for seqs in batches:
                    await asyncio.sleep(self.chance.choice((0, 0.02)))  # on its way, and nothing may overtake it
                    found += seqs
                    if found[-1] >= goal:
                        break
            assert found == list(range(begin, found[-1] + 1))
            self.met["replayed" if begin < tip.seq else "at the tip"] += 1
            self.met["stayed"] += goal > tip.seq

    async def follow(self, stream_id, after, found):
        """Alone or with others, what comes as seqs; some of what is offered is found without being asked for."""
        source = Source(stream_id=stream_id, project_id=stream_id, table=Activity)
        if self.chance.random() < 0.3:
            async with contextlib.aclosing(readers.follow(self.reading, source, after, Ear())) as batches:
                async for batch in batches:
                    assert batch.reset is None
                    yield [row.seq for row in batch.rows]
        live = Live(
            feeds=self.reading,
            source=source,
            after=after,
            tell=lambda batch: batch,
            rights=self.world.server.rights,
            reader=self.reader,
        )

        def offer(answer):
            if self.chance.random() < 0.5:
                return False
            found.extend(orjson.loads(answer.body))
            self.met["offered"] += 1
            return True

        async with contextlib.aclosing(self.hub.follow(live, "a document", self.execute, offer)) as answers:
            async for answer in answers:
                yield orjson.loads(answer.body)

    async def execute(self, batch):
        assert batch.reset is None
        await asyncio.sleep(self.chance.choice((0, 0, 0.001, 0.005)))
        return Answer(orjson.dumps([row.seq for row in batch.rows]))


@contextlib.asynccontextmanager
async def race(world, ada):
    reading = Feeds(world.server.db, world.server.bus, window_seconds=0.0, poll_seconds=NEVER)
    projects = [ids.decode(await project(ada))[1] for _ in range(STREAMS)]
    async with world.server.db.reading() as session:
        found: list[Stream] = list(await streams.by_ids(session, projects))
    async with reading.running():
        yield Race(world, reading, ada.user.id, {one.id: Cursor(one.epoch, one.last_seq) for one in found})


async def test_nothing_falls_between_reading_and_subscribing(world, ada, small):
    """Alone or in a group, from memory or from the database; afterwards nobody and nothing is left."""
    async with race(world, ada) as running, asyncio.timeout(SECONDS):
        async with asyncio.TaskGroup() as outer:
            writing = [outer.create_task(running.write(stream_id)) for stream_id in running.tips]
            async with asyncio.TaskGroup() as group:
                for _ in range(AT_ONCE):
                    group.create_task(running.come_and_go())
            for task in writing:
                task.cancel()
        assert (running.hub.groups, running.reading.count) == (0, 0)
    assert min(running.met.values()) > TIMES / 10
