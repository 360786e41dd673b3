"""Who may go on reading what they follow: one question a turn for all open streams together."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from uuid import UUID

import structlog
from sqlalchemy import select, tuple_

from app.bus import Bus
from app.db import Database, DatabaseUnavailable
from app.errors import Forbidden
from app.feeds import Ear
from app.models import Membership

WATCH_SECONDS = 0.5
AT_ONCE = 5_000  # memberships in one question
TOPIC = "rights"
LOST = "right_lost"  # left in a session's `info` by a transaction that removed a member

Right = tuple[UUID, UUID]  # a project and one of its members

log = structlog.get_logger()


class Rights:
    def __init__(self, db: Database, bus: Bus) -> None:
        self._db = db
        self._bus = bus
        self._ears: defaultdict[Right, set[Ear]] = defaultdict(set)
        db.after_commit(self._hear_commit)

    @contextmanager
    def needed(self, user_id: UUID, project_id: UUID, ear: Ear) -> Iterator[None]:
        """Within, the ear hears of the end of this membership."""
        right = (project_id, user_id)
        self._ears[right].add(ear)
        try:
            yield
        finally:
            self._ears[right].discard(ear)
            if not self._ears[right]:
                del self._ears[right]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self._watch(), name="rights")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _hear_commit(self, left: Mapping[Any, Any]) -> None:
        """Somebody was removed here: nothing later reaches them, and the other replicas look at once."""
        if LOST in left:
            self._end(left[LOST])
            self._bus.ring(TOPIC, 0)

    async def _watch(self) -> None:
        with self._bus.listen(TOPIC) as bell:
            while True:
                await bell.wait(WATCH_SECONDS)
                try:
                    await self._end_lost()
                except DatabaseUnavailable:
                    pass  # nothing can be read meanwhile
                except Exception:
                    # The edge of the watch: were it to end, nobody's end of membership would be heard of any more.
                    log.exception("rights_watch_failed")

    async def _end_lost(self) -> None:
        rights = list(self._ears)
        for start in range(0, len(rights), AT_ONCE):
            some = rights[start : start + AT_ONCE]
            membership = tuple_(Membership.project_id, Membership.user_id)
            async with self._db.reading() as session:
                found = await session.execute(
                    select(Membership.project_id, Membership.user_id).where(membership.in_(some))
                )
            kept = {(project_id, user_id) for project_id, user_id in found}
            for right in some:
                if right not in kept:
                    self._end(right)

    def _end(self, right: Right) -> None:
        for ear in self._ears.get(right, ()):
            ear.end(Forbidden("You are no longer a member of this project."))
