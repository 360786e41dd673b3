"""Streams: numbers without holes, a running hash, and readers who miss nothing."""

import asyncio
import hashlib

import orjson
import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import DBAPIError

from app import ids, streams
from app.errors import BadUserInput
from app.models import Activity, Stream
from tests.world import record

FIELDS = ("id", "verb", "summary", "actor", "actor_kind", "subject_kind", "subject_id")


@pytest.fixture
def stream_id(apollo):
    return ids.decode(apollo)[1]


async def stored(world, stream_id):
    async with world.server.db.reading() as session:
        rows = await session.scalars(select(Activity).where(Activity.stream_id == stream_id).order_by(Activity.seq))
        return await session.get_one(Stream, stream_id), rows.all()


async def test_numbers_are_consecutive_under_concurrent_writers(world, stream_id):
    """Eight writers, some with several entries at once: 1, 2, 3 … and entries of one transaction stand together."""
    await asyncio.gather(
        *(
            record(world.server, stream_id, *(f"{writer}.{turn}" for _ in range(turn)))
            for writer in range(8)
            for turn in (1, 3)
        )
    )

    stream, rows = await stored(world, stream_id)
    assert [row.seq for row in rows] == list(range(1, 34))
    assert stream.last_seq == 33
    told = [row.summary for row in rows]
    assert all(told.index(one) + told.count(one) - 1 == 32 - told[::-1].index(one) for one in told)


async def test_a_change_that_is_taken_back_uses_no_number(world, stream_id):
    """The next one follows without a hole."""
    with pytest.raises(DBAPIError):
        await record(world.server, stream_id, "before a character that no row can hold", "\0")
    await record(world.server, stream_id, "kept")

    _, rows = await stored(world, stream_id)
    assert [(row.seq, row.summary) for row in rows] == [(1, "created the project Apollo"), (2, "kept")]


async def test_the_digest_chains_every_entry(world, stream_id):
    """SHA-256 over the digest before and the public id, in order: who saw them can prove that none is missing."""
    await asyncio.gather(*(record(world.server, stream_id, f"change {number}") for number in range(10)))

    stream, rows = await stored(world, stream_id)
    digest, size = bytes(32), 0
    for row in rows:
        entry = {name: getattr(row, name) for name in FIELDS}
        digest = hashlib.sha256(digest + ids.encode("activity", row.id).encode()).digest()
        size += len(orjson.dumps(entry, default=str))
    assert (stream.digest, stream.size_bytes) == (digest, size)


async def test_what_is_no_longer_kept_is_told(world, ada, apollo, stream_id):
    """A cursor before the first kept entry is answered with a reset, and the stream goes on from there."""
    await record(world.server, stream_id, "two", "three")
    stream, _ = await stored(world, stream_id)
    async with world.server.db.writing() as session:
        await session.execute(text("DELETE FROM activities WHERE seq < 3"))
        await session.execute(text("UPDATE streams SET first_seq = 3"))

    follow = "subscription($id: ID!, $after: String) { projectActivity(projectId: $id, after: $after) { %s } }"
    fields = "activities { seq } reset { reason firstAvailableSeq }"
    after = str(streams.Cursor(stream.epoch, 1))
    async with ada.following(follow % fields, id=apollo, after=after) as events:
        payload = await events.next()

    assert payload["activities"] == [{"seq": 3}]
    assert payload["reset"] == {"reason": "What came after this cursor is no longer kept.", "firstAvailableSeq": 3}


@pytest.mark.parametrize("seq", [0, 1, 99, (1 << 63) - 1])
def test_a_cursor_is_read_as_it_was_written(seq):
    cursor = streams.Cursor("0123456789ab", seq)
    assert streams.parse(str(cursor)) == cursor


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "é",
        "\0",
        "\ud800",
        "A" * 1_000,
        str(streams.Cursor("0123456789ab", -1)),
        str(streams.Cursor("0123456789ab", 1 << 63)),
        str(streams.Cursor("0123456789ab", 5)) + "=",
        str(streams.Cursor("0123456789ab", "05")),
        str(streams.Cursor("0123456789ab", "")),
        str(streams.Cursor("0123456789ab", "1_0")),
        str(streams.Cursor("é", 1)),
    ],
    ids=lambda text: ascii(text)[:40],
)
def test_anything_else_is_refused(text):
    with pytest.raises(BadUserInput) as refusal:
        streams.parse(text, name="before")

    assert refusal.value.path == ["before"]
