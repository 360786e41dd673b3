"""A project's feed: what happened to its tickets, tasks and members, in the order in which it was committed."""

from collections.abc import AsyncGenerator, Sequence
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from app import auth, ids, paging, streams
from app.auth import Principal
from app.bus import Bus
from app.db import Database
from app.errors import BadUserInput, Forbidden, NotFound
from app.models import Activity

IN_ORDER = paging.Order(Activity.seq)


class Cursors:
    """In a feed a place is (epoch, seq), the same for pages and for subscriptions and for everybody."""

    def __init__(self, epoch: str) -> None:
        self.epoch = epoch

    def write(self, key: paging.Key) -> str:
        return str(streams.Cursor(self.epoch, int(key)))

    def read(self, text: str, name: str, kind: type[paging.Key]) -> paging.Key:
        cursor = streams.parse(text, name=name)
        if cursor.epoch != self.epoch:
            raise BadUserInput(f"`{name}` is not a cursor of this stream.", path=[name])
        return cursor.seq


async def page(
    session: AsyncSession, project_id: UUID, arguments: paging.Arguments, *, count: paging.Count
) -> paging.Page[Activity]:
    stream = await streams.read(session, project_id)
    if stream is None:
        raise NotFound
    query = select(Activity).where(Activity.stream_id == project_id)
    return await paging.page(session, query, IN_ORDER, arguments, cursors=Cursors(stream.epoch), count=count)


async def count(session: AsyncSession, project_id: UUID) -> int:
    return await session.scalar(select(func.count()).where(Activity.stream_id == project_id)) or 0


def follow(
    db: Database, bus: Bus, principal: Principal, project_id: UUID, *, after: str | None, poll_seconds: float
) -> AsyncGenerator[streams.Batch]:
    async def read(session: AsyncSession, seq: int, limit: int) -> Sequence[Activity]:
        query = select(Activity).where(Activity.stream_id == project_id, Activity.seq > seq)
        return (await session.scalars(query.order_by(Activity.seq).limit(limit))).all()

    async def authorise(session: AsyncSession) -> None:
        if await auth.role_for(session, principal, ids.encode("project", project_id)) is None:
            raise Forbidden("You are no longer a member of this project.")

    source = streams.Source(stream_id=project_id, read=read, authorise=authorise)
    return streams.follow(db, bus, source, after=after, poll_seconds=poll_seconds)
