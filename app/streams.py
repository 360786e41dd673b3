"""Numbered, append-only streams. Seq order is commit order, without holes: the row is locked before numbering."""

import base64
import hashlib
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import orjson
import structlog
from sqlalchemy import select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from app.bus import Bus
from app.db import Database, DatabaseUnavailable
from app.errors import BadUserInput, NotFound
from app.models import Stream

EPOCH_BYTES = 6
CURSOR_CHARS = 64
BATCH = 100  # rows in one payload at most

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Cursor:
    """A place in a stream: everything up to and including `seq` has been seen."""

    epoch: str
    seq: int

    def __str__(self) -> str:
        return base64.urlsafe_b64encode(f"{self.epoch}:{self.seq}".encode()).decode().rstrip("=")


def parse(text: str, *, name: str = "after") -> Cursor:
    try:
        if len(text) > CURSOR_CHARS:
            raise ValueError(text)
        epoch, _, seq = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode("ascii").partition(":")
        cursor = Cursor(epoch, int(seq))
    except ValueError as error:
        raise BadUserInput(f"`{name}` is not a cursor of this stream.", path=[name]) from error
    if str(cursor) != text or not 0 <= cursor.seq < 1 << 63:
        raise BadUserInput(f"`{name}` is not a cursor of this stream.", path=[name])
    return cursor


async def create(session: AsyncSession, projects: Mapping[UUID, UUID]) -> None:
    """New streams: for each its id, and the project that it belongs to."""
    rows = [
        {"id": stream_id, "project_id": project_id, "epoch": secrets.token_hex(EPOCH_BYTES), "digest": bytes(32)}
        for stream_id, project_id in projects.items()
    ]
    await session.execute(insert(Stream), rows)


async def lock(session: AsyncSession, stream_id: UUID) -> Stream:
    """Take the stream for this transaction. Nothing may be numbered before this statement has returned."""
    found = await session.scalars(select(Stream).where(Stream.id == stream_id).with_for_update())
    return found.one()


async def advance(session: AsyncSession, stream: Stream, entries: Sequence[dict[str, Any]]) -> range:
    """Number these entries, in this order, on a stream that this transaction has locked; returns their seqs."""
    encoded = [orjson.dumps(entry, default=str, option=orjson.OPT_SORT_KEYS) for entry in entries]
    digest = stream.digest
    for entry in encoded:
        digest = hashlib.sha256(digest + entry).digest()
    first, last = stream.last_seq + 1, stream.last_seq + len(entries)
    size = sum(map(len, encoded))
    await session.execute(
        update(Stream)
        .where(Stream.id == stream.id)
        .values(last_seq=last, size_bytes=Stream.size_bytes + size, digest=digest)
        .execution_options(synchronize_session=False)
    )
    return range(first, last + 1)


async def read(session: AsyncSession, stream_id: UUID) -> Stream | None:
    found = await session.scalars(select(Stream).where(Stream.id == stream_id))
    return found.one_or_none()


async def by_ids(session: AsyncSession, stream_ids: Sequence[UUID]) -> Sequence[Stream]:
    found = await session.scalars(select(Stream).where(Stream.id.in_(stream_ids)))
    return found.all()


async def epochs(session: AsyncSession, stream_ids: Sequence[UUID]) -> Mapping[UUID, str]:
    found = await session.execute(select(Stream.id, Stream.epoch).where(Stream.id.in_(stream_ids)))
    return dict(found.all())


@dataclass(frozen=True, slots=True, kw_only=True)
class Reset:
    """A cursor that cannot be honoured: the stream goes on from here instead."""

    reason: str
    first_available_seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    rows: Sequence[Any]
    cursor: str
    epoch: str
    caught_up: bool
    reset: Reset | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One stream as one reader sees it."""

    stream_id: UUID
    read: Callable[[AsyncSession, int, int], Awaitable[Sequence[Any]]]  # rows after a seq, at most so many, by seq
    authorise: Callable[[AsyncSession], Awaitable[None]]  # raises when the reader may read no longer


async def follow(
    db: Database, bus: Bus, source: Source, *, after: str | None, poll_seconds: float
) -> AsyncGenerator[Batch]:
    """What came after `after`, or everything without one, then live. Nothing is skipped and nothing comes twice.

    The reader listens before it reads, so nothing falls between; a ring that is lost costs one poll. The first batch
    that reaches the end of what is stored is sent even when it is empty.
    """
    wanted = parse(after) if after is not None else None
    place: Cursor | None = None
    announced = False
    with bus.listen(topic(source.stream_id)) as bell:
        while True:
            try:
                async with db.background, db.reading() as session:
                    batch, reached = await _next(session, source, wanted if place is None else place)
            except DatabaseUnavailable as error:  # it comes back, and so does the stream
                log.info("stream_read_failed", stream=str(source.stream_id), error=error.message)
                await bell.wait(poll_seconds)
                continue
            place = reached  # only now: what could not be handed on is read again
            if batch.rows or batch.reset or not announced:
                announced = announced or batch.caught_up
                yield batch
            if batch.caught_up:
                await bell.wait(poll_seconds)


async def _next(session: AsyncSession, source: Source, after: Cursor | None) -> tuple[Batch, Cursor]:
    stream = await read(session, source.stream_id)
    if stream is None:
        raise NotFound
    reset = _reset(stream, after)
    start = after.seq if after is not None and reset is None else stream.first_seq - 1
    rows = await source.read(session, start, BATCH)
    # Asked last: whoever may read now may read what was there before now, and nothing later was read.
    await source.authorise(session)
    reached = rows[-1].seq if rows else start
    if len(rows) < BATCH:  # that was all, also for a reader who leaves some out
        reached = max(reached, stream.last_seq)
    place = Cursor(stream.epoch, reached)
    # Rows that were committed after the stream was read make this False at worst: one more, empty, turn.
    batch = Batch(rows=rows, cursor=str(place), epoch=stream.epoch, caught_up=place.seq >= stream.last_seq, reset=reset)
    return batch, place


def _reset(stream: Stream, after: Cursor | None) -> Reset | None:
    if after is None:
        return None
    if after.epoch != stream.epoch:
        reason = "This cursor belongs to another stream, or to one that was restored from a backup."
    elif after.seq > stream.last_seq:
        reason = "This cursor lies ahead of the stream."
    elif after.seq < stream.first_seq - 1:
        reason = "What came after this cursor is no longer kept."
    else:
        return None
    return Reset(reason=reason, first_available_seq=stream.first_seq)


def topic(stream_id: UUID) -> str:
    return f"stream:{stream_id}"
