"""One reader's way through a stream, from its cursor to the live end and on."""

from collections.abc import AsyncGenerator
from dataclasses import replace

from app.feeds import Batch, Ear, Feed, Feeds, Reset
from app.sources import Source
from app.streams import Cursor


class Reader:
    """One reader's place in a stream. The first batch that reaches its end is given even when it is empty."""

    def __init__(self, feed: Feed, source: Source) -> None:
        self._feed = feed
        self._source = source
        self._reset: Reset | None = None
        self.announced = False
        self.place = Cursor("", 0)

    def stand_at(self, place: Cursor) -> None:
        """Begin here, with nothing to tell of what was before."""
        self.place, self.announced, self._reset = place, True, None

    async def begin(self, after: Cursor | None) -> None:
        self.place, self._reset = await self._feed.start(after)
        self.announced = self.announced and self._reset is None

    @property
    def resets(self) -> bool:
        """Whether its place was given up, and the next batch tells of that."""
        return self._reset is not None

    @property
    def behind(self) -> bool:
        tip = self._feed.tip
        return self.place.epoch != tip.epoch or self.place.seq < tip.seq or not self.announced

    async def next(self, *, upto: int | None = None) -> Batch | None:
        """What comes now, and the place moves on; None where there is nothing to tell."""
        if self.place.epoch != self._feed.tip.epoch:
            await self.begin(self.place)
        batch = await self._feed.page(self._source, self.place, upto=upto)
        if not self._feed.keeps(self.place):
            await self.begin(self.place)
            return None
        self.place = batch.end
        if not (batch.rows or self._reset or (batch.caught_up and not self.announced)):
            return None
        self.announced = self.announced or batch.caught_up
        reset, self._reset = self._reset, None
        return replace(batch, caught_up=self.announced, reset=reset)


async def follow(feeds: Feeds, source: Source, after: Cursor | None, ear: Ear) -> AsyncGenerator[Batch]:
    """What came after `after`, or everything without one, then live: nothing is skipped, and nothing comes twice."""
    async with feeds.open(source) as feed:
        reader = Reader(feed, source)
        await reader.begin(after)
        with feed.listening(ear):
            while True:
                batch = await reader.next()
                ear.check()
                if batch is not None:
                    yield batch
                if not reader.behind:
                    await ear.wait()
