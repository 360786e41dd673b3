"""What a subscription to a stream resolves to: which part of it, from where on, and how a batch of it is told."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractContextManager, aclosing
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from app import readers, streams
from app.feeds import Batch, Ear, Feeds
from app.rights import Rights
from app.sources import Source
from resolvers.context import Context


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """One subscriber's stream. It is followed alone, or together with all who ask the same of the same source."""

    feeds: Feeds
    source: Source
    after: streams.Cursor | None
    tell: Callable[[Batch], Any]
    rights: Rights
    reader: UUID  # whose membership of the project has to last

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._alone()

    def listening(self, ear: Ear) -> AbstractContextManager[None]:
        """Meanwhile this ear hears of the end of the right to listen."""
        return self.rights.needed(self.reader, self.source.project_id, ear)

    async def _alone(self) -> AsyncGenerator[Any]:
        ear = Ear()
        with self.listening(ear):
            async with aclosing(readers.follow(self.feeds, self.source, self.after, ear)) as batches:
                async for batch in batches:
                    yield self.tell(batch)


def live(context: Context, source: Source, after: str | None, tell: Callable[[Batch], Any]) -> Live:
    cursor = context.resume_after or after
    return Live(
        feeds=context.services.feeds,
        source=source,
        after=streams.parse(cursor) if cursor is not None else None,
        tell=tell,
        rights=context.services.rights,
        reader=context.principal.id,
    )
