"""Equal subscriptions share one execution and one encoding of each batch; what came before is told to each alone."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import structlog

from app.errors import AppError, RequestError, Unavailable
from app.feeds import Batch, Ear, Feed
from app.readers import Reader
from app.sources import Source
from app.streams import Cursor
from resolvers.live import Live
from schema.wire import Answer

NEWEST = 4  # answers that are kept whatever their size: one that is large puts nobody behind

log = structlog.get_logger(__name__)

Execute = Callable[[Any], Awaitable[Answer]]
Offer = Callable[[Answer], bool]  # to send it without waiting, where that can be; whether it was sent


class SlowConsumer(RequestError):
    """One subscriber reads more slowly than the stream goes on; it resumes from its cursor."""

    code = "SLOW_CONSUMER"

    def __init__(self, place: Cursor) -> None:
        message = "What was sent is read too slowly. Resume with `after` set to the cursor."
        super().__init__(message, details={"cursor": str(place)})


@dataclass(frozen=True, slots=True)
class Room:
    """How far behind the live end a subscriber may fall."""

    answers: int
    size: int  # in bytes, beyond the newest few answers


@dataclass(frozen=True, slots=True)
class Frame:
    answer: Answer
    end: Cursor


class Member(Ear):
    """One subscriber of a group. At the live end it is offered each answer, or else woken to come for it."""

    __slots__ = ("_offer", "number", "place")

    def __init__(self, offer: Offer) -> None:
        super().__init__()
        self._offer = offer
        self.number: int | None = None  # of the answer that comes next; None before the live end
        self.place = Cursor("", 0)

    def stand_at(self, number: int | None, place: Cursor) -> None:
        self.number, self.place = number, place

    def offer(self, number: int, frame: Frame) -> None:
        """Only who waits has sent all that came before."""
        if self.waits and number == self.number and self._offer(frame.answer):
            self.stand_at(number + 1, frame.end)
        else:
            self.wake()


class Group:
    """Those who follow the same source by the same document, at its live end."""

    def __init__(self, feed: Feed, source: Source, room: Room) -> None:
        self._feed = feed
        self._room = room
        self._frames: deque[Frame] = deque()  # one mailbox for all: the newest answers
        self._size = 0
        self._members: set[Member] = set()
        self._reader = Reader(feed, source)
        self._failed: AppError | None = None
        self.first = 0  # the number of the oldest answer that is kept
        self.begun = 0  # how often; members begin anew when it does
        self._begin()

    @property
    def next(self) -> int:
        """The number of the answer that is to come."""
        return self.first + len(self._frames)

    def next_of(self, member: Member) -> Answer:
        """What a member that does not wait has not seen yet."""
        assert member.number is not None
        if member.number < self.first:
            raise SlowConsumer(member.place)
        frame = self._frames[member.number - self.first]
        member.stand_at(member.number + 1, frame.end)
        return frame.answer

    def join(self, member: Member) -> None:
        if self._failed is not None:
            raise self._failed
        self._members.add(member)

    def leave(self, member: Member) -> None:
        self._members.discard(member)

    async def run(self, tell: Callable[[Batch], Any], execute: Execute) -> None:
        ear = Ear()
        try:
            with self._feed.listening(ear):
                while True:
                    await self._go_on(tell, execute)
                    while self._reader.place == self._feed.tip:
                        await ear.wait()
        except AppError as error:
            self._fail(error)
        except Exception:
            # The edge of a group: its members are told, come back, and find another one.
            log.exception("group_failed")
            self._fail(Unavailable("This stream cannot be read right now. Resume it in a moment."))

    async def _go_on(self, tell: Callable[[Batch], Any], execute: Execute) -> None:
        batch = await self._reader.next()
        if self._reader.resets or (batch is not None and batch.reset):
            self._begin()
        elif batch is not None and batch.rows:
            frame = Frame(await execute(tell(batch)), batch.end)
            self.place = self._reader.place
            self._tell(frame)
            return
        self.place = self._reader.place
        self._wake()

    def _tell(self, frame: Frame) -> None:
        number = self.next
        self._keep(frame)
        for member in self._members:
            member.offer(number, frame)

    def _wake(self) -> None:
        for member in self._members:
            member.wake()

    def _begin(self) -> None:
        """At the live end, without a past: to each member its own is told by its own reader."""
        self._frames.clear()
        self._size, self.begun = 0, self.begun + 1
        self._reader.stand_at(self._feed.tip)
        self.place = self._reader.place

    def _keep(self, frame: Frame) -> None:
        self._frames.append(frame)
        self._size += len(frame.answer.body)
        while len(self._frames) > self._room.answers or (self._size > self._room.size and len(self._frames) > NEWEST):
            self._size -= len(self._frames.popleft().answer.body)
            self.first += 1

    def _fail(self, why: AppError) -> None:
        self._failed = why
        for member in self._members:
            member.end(why)


@dataclass(slots=True)
class _Open:
    group: Group
    task: asyncio.Task[None]
    members: int = 0


class Hub:
    def __init__(self, room: Room) -> None:
        self._room = room
        self._groups: dict[Hashable, _Open] = {}

    @property
    def groups(self) -> int:
        return len(self._groups)

    async def follow(self, live: Live, document: Hashable, execute: Execute, offer: Offer) -> AsyncGenerator[Answer]:
        """The answers of one subscriber: its own up to the live end, and from there on those of its group.

        `document` names all that an answer depends on beside the source: two with the same share their answers.
        What `offer` has sent is not given again.
        """
        member = Member(offer)
        async with live.feeds.open(live.source) as feed:
            with live.listening(member):
                async with self._joined(feed, live, document, execute, member) as group:
                    reader = Reader(feed, live.source)
                    await reader.begin(live.after)
                    while True:
                        async for answer in _caught_up(group, reader, live, execute, member):
                            yield answer
                        begun = group.begun
                        member.stand_at(group.next, reader.place)
                        while group.begun == begun:
                            if member.number == group.next:
                                await member.wait()
                            else:
                                member.check()
                                yield group.next_of(member)
                        reader.place = member.place
                        member.stand_at(None, reader.place)

    @asynccontextmanager
    async def _joined(
        self, feed: Feed, live: Live, document: Hashable, execute: Execute, member: Member
    ) -> AsyncIterator[Group]:
        key = (live.source, document)
        shared = self._groups.get(key)
        if shared is None or shared.task.done():
            group = Group(feed, live.source, self._room)
            task = asyncio.create_task(group.run(live.tell, execute), name="group")
            shared = self._groups[key] = _Open(group, task)
        shared.members += 1
        shared.group.join(member)
        try:
            yield shared.group
        finally:
            shared.group.leave(member)
            shared.members -= 1
            if not shared.members:
                shared.task.cancel()
                if self._groups.get(key) is shared:
                    del self._groups[key]


async def _caught_up(group: Group, reader: Reader, live: Live, execute: Execute, ear: Ear) -> AsyncGenerator[Answer]:
    """What a subscriber has not seen yet, up to exactly where its group is."""
    while True:
        before = reader.place, group.place
        batch = await reader.next(upto=group.place.seq)
        ear.check()
        if batch is not None:
            yield await execute(live.tell(batch))
        if reader.place == group.place and reader.announced:
            return
        if (reader.place, group.place) == before:  # the group is behind, or has not heard that the stream went back
            await ear.wait()
