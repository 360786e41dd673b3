"""Following streams: each is read once in this process, however many follow it, and none of them misses anything."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar
from uuid import UUID

import structlog
from sqlalchemy.ext.asyncio import AsyncSession

from app import sources, streams
from app.bus import Bell, Bus
from app.db import Database, DatabaseUnavailable
from app.errors import AppError, NotFound, Unavailable
from app.models import Stream
from app.sources import Source
from app.streams import Cursor, Extent

PAGE = 100  # rows in one payload at most
READ = 500  # rows that a feed reads at once
RECENT_ROWS = 1_000  # of each stream, kept for those who are a little behind
RECENT_BYTES = 4 << 20
RETRY_SECONDS = 0.5

Found = TypeVar("Found")

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reset:
    """A cursor that cannot be honoured: the stream goes on from here instead."""

    reason: str
    first_available_seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    rows: Sequence[Any]
    end: Cursor
    caught_up: bool
    reset: Reset | None = None


class Ear:
    """One who waits, and is woken when there may be something for them."""

    __slots__ = ("_waiting", "ended")

    def __init__(self) -> None:
        self._waiting: asyncio.Future[None] | None = None
        self.ended: AppError | None = None  # why they may hear no more

    @property
    def waits(self) -> bool:
        return self._waiting is not None and not self._waiting.done()

    def end(self, why: AppError) -> None:
        self.ended = why
        self.wake()

    def wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def wait(self) -> None:
        """Whoever looked before, without a pause in between, misses nothing."""
        self._waiting = asyncio.get_running_loop().create_future()
        try:
            await self._waiting
        finally:
            self._waiting = None
        self.check()

    def check(self) -> None:
        if self.ended is not None:
            raise self.ended


class Feed:
    """The newest end of one stream, as this process has read it."""

    def __init__(self, db: Database, source: Source, window_seconds: float) -> None:
        self._db = db
        self._source = source
        self._bell: Bell | None = None
        self._window_seconds = window_seconds
        self._recent: list[Any] = []  # without holes up to the tip
        self._bytes = 0
        self._ears: set[Ear] = set()
        self._ready = asyncio.Event()
        self._failed: AppError | None = None
        self._first_seq, self._last_seq = 1, 0  # as the database said last
        self.tip = Cursor("", 0)  # up to here everything was read, or was there before

    async def ready(self) -> None:
        await self._ready.wait()
        if self._failed is not None:
            raise self._failed

    @contextmanager
    def listening(self, ear: Ear) -> Iterator[None]:
        self._ears.add(ear)
        try:
            yield
        finally:
            self._ears.discard(ear)

    async def start(self, after: Cursor | None) -> tuple[Cursor, Reset | None]:
        """Where a reader begins who has seen everything up to `after`, or nothing yet."""
        if after is not None:
            if after.seq > self.tip.seq:
                await self._insist(self._look)  # another process may have read further than this one
            reason = self._refusal(after)
            if reason is None:
                return after, None
            return self._beginning, Reset(reason=reason, first_available_seq=self._first_seq)
        return self._beginning, None

    def keeps(self, after: Cursor) -> bool:
        """Whether that place is still there, and all that came after it."""
        return Extent(self.tip.epoch, self._first_seq, self._last_seq).has(after)

    async def page(self, source: Source, after: Cursor, *, upto: int | None = None) -> Batch:
        """What this source has between that place and another one, or the tip; one payload of it at most."""
        end = self.tip.seq if upto is None else min(upto, self.tip.seq)
        rows = self._remembered(source, after.seq, end)
        if rows is None:
            rows = await self._stored(source, after, end)
        fitting = sources.fitting(rows)
        # The page was full, or it holds all that there is; also for a reader who leaves some out.
        full = len(fitting) == PAGE or len(fitting) < len(rows)
        rows, reached = fitting, fitting[-1].seq if full else max(after.seq, end)
        return Batch(rows=rows, end=Cursor(after.epoch, reached), caught_up=reached >= end)

    async def run(self, bell: Bell) -> None:
        """Read on whenever the stream is rung, until nobody follows it any more."""
        self._bell = bell
        try:
            await self._begin()
            while True:
                await bell.wait(None)
                if bell.missed or bell.newest > self.tip.seq:  # or else it is the echo of a ring, by way of Redis
                    bell.missed = False
                    await asyncio.sleep(self._window_seconds)
                    await self._read_on()
        except NotFound as gone:
            self._fail(gone)
        except Exception:
            # The edge of a feed: who follows it is told, comes back, and finds another one.
            log.exception("feed_failed", stream=str(self._source.stream_id))
            self._fail(Unavailable("This stream cannot be read right now. Resume it in a moment."))

    def saw(self, stream: Stream, known: int) -> None:
        """How the stream stands in the database: a ring may have been lost, or a backup been restored.

        `known` is the tip of before it was asked; only what lies behind that has gone back.
        """
        self._first_seq = stream.first_seq
        if stream.epoch != self.tip.epoch or stream.last_seq < known:
            self.tip, self._last_seq = Cursor(stream.epoch, stream.last_seq), stream.last_seq
            self._recent, self._bytes = [], 0
            self._wake()
        self._last_seq = max(self._last_seq, stream.last_seq)
        if stream.last_seq > self.tip.seq and self._bell is not None:
            self._bell.ring(stream.last_seq)

    async def _begin(self) -> None:
        await self._insist(self._look)
        self._ready.set()

    async def _look(self, session: AsyncSession) -> None:
        known = self.tip.seq
        stream = await streams.read(session, self._source.stream_id)
        if stream is None:
            raise NotFound
        self.saw(stream, known)

    async def _read_on(self) -> None:
        async def read(session: AsyncSession) -> Sequence[Any]:
            return await self._source.rows(session, self.tip.seq, streams.LAST, READ)

        rows: Sequence[Any] = await self._insist(read)
        while rows:
            self._remember(rows)
            self._wake()
            rows = await self._insist(read) if len(rows) == READ else ()

    async def _insist(self, read: Callable[[AsyncSession], Awaitable[Found]]) -> Found:
        """Ask until the database answers."""
        while True:
            try:
                async with self._db.background, self._db.reading() as session:
                    return await read(session)
            except DatabaseUnavailable as error:
                log.info("stream_read_failed", stream=str(self._source.stream_id), error=error.message)
                await asyncio.sleep(RETRY_SECONDS)

    async def _stored(self, source: Source, after: Cursor, end: int) -> Sequence[Any]:
        async def read(session: AsyncSession) -> Sequence[Any]:
            rows = await source.rows(session, after.seq, end, PAGE)
            await self._look(session)  # last: what is kept now was kept when the rows were read
            return rows

        return await self._insist(read)

    def _remembered(self, source: Source, after: int, end: int) -> Sequence[Any] | None:
        if after >= self.tip.seq:
            return ()
        first = self.tip.seq - len(self._recent)  # the last seq that is not remembered
        if after < first:
            return None
        rows: list[Any] = []
        for row in self._recent[after - first : end - first]:
            if source.wants(row):
                rows.append(row)
                if len(rows) == PAGE:
                    break
        return rows

    def _remember(self, rows: Sequence[Any]) -> None:
        if rows[0].seq != self.tip.seq + 1:  # what lay between is no longer kept
            self._recent, self._bytes = [], 0
        self._recent.extend(rows)
        self._bytes += sum(map(sources.size_of, rows))
        self.tip = Cursor(self.tip.epoch, rows[-1].seq)
        self._last_seq = max(self._last_seq, rows[-1].seq)
        drop = 0
        while drop < len(self._recent) - len(rows) and self._too_much(drop):
            self._bytes -= sources.size_of(self._recent[drop])
            drop += 1
        del self._recent[:drop]

    def _too_much(self, dropped: int) -> bool:
        return len(self._recent) - dropped > RECENT_ROWS or self._bytes > RECENT_BYTES

    @property
    def _beginning(self) -> Cursor:
        return Cursor(self.tip.epoch, self._first_seq - 1)

    def _refusal(self, after: Cursor) -> str | None:
        if after.epoch != self.tip.epoch:
            return "This cursor belongs to another stream, or to one that was restored from a backup."
        if after.seq > self._last_seq:
            return "This cursor lies ahead of the stream."
        if after.seq < self._first_seq - 1:
            return "What came after this cursor is no longer kept."
        return None

    def _fail(self, why: AppError) -> None:
        self._failed = why
        self._ready.set()
        for ear in self._ears:
            ear.end(why)

    def _wake(self) -> None:
        for ear in self._ears:
            ear.wake()


class Feeds:
    """The feeds that are followed in this process."""

    def __init__(self, db: Database, bus: Bus, *, window_seconds: float, poll_seconds: float) -> None:
        self._db = db
        self._bus = bus
        self._window_seconds = window_seconds
        self._poll_seconds = poll_seconds
        self._feeds: dict[UUID, _Open] = {}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self._poll(), name="stream poll")
        try:
            yield
        finally:
            tasks = [task, *(one.task for one in self._feeds.values())]
            for each in tasks:
                each.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    @asynccontextmanager
    async def open(self, source: Source) -> AsyncIterator[Feed]:
        """The feed of this stream, for as long as somebody follows it."""
        shared = self._feeds.get(source.stream_id)
        if shared is None or shared.task.done():
            shared = self._feeds[source.stream_id] = self._start(source)
        shared.followers += 1
        try:
            await shared.feed.ready()
            yield shared.feed
        finally:
            shared.followers -= 1
            if not shared.followers:
                shared.task.cancel()
                if self._feeds.get(source.stream_id) is shared:
                    del self._feeds[source.stream_id]

    @property
    def count(self) -> int:
        return len(self._feeds)

    def _start(self, source: Source) -> "_Open":
        feed = Feed(self._db, replace(source, types=None), self._window_seconds)
        return _Open(feed, asyncio.create_task(self._run(feed, source.stream_id), name="feed"))

    async def _run(self, feed: Feed, stream_id: UUID) -> None:
        with self._bus.listen(streams.topic(stream_id)) as bell:
            await feed.run(bell)

    async def _poll(self) -> None:
        """One question a turn for all streams together, for those whose ring was lost."""
        while True:
            await asyncio.sleep(self._poll_seconds)
            try:
                await self._look()
            except DatabaseUnavailable:
                pass  # said elsewhere; the next turn asks again
            except Exception:
                # The edge of the poll: were it to end, no lost ring would be made good any more.
                log.exception("stream_poll_failed")

    async def _look(self) -> None:
        known = {stream_id: shared.feed.tip.seq for stream_id, shared in self._feeds.items()}
        async with self._db.background, self._db.reading() as session:
            found = await streams.by_ids(session, list(known))
        for stream in found:
            if shared := self._feeds.get(stream.id):
                shared.feed.saw(stream, known[stream.id])


@dataclass(slots=True)
class _Open:
    feed: Feed
    task: asyncio.Task[None]
    followers: int = 0
