"""A project's feed: what happened to its tickets, tasks and members, in the order in which it was committed."""

from collections.abc import Mapping, Sequence
from uuid import UUID

from sqlalchemy import ColumnElement, Select, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from app import paging, streams
from app.errors import BadUserInput
from app.models import Activity

IN_ORDER = paging.Order(Activity.seq)


class Cursors:
    """In a feed a place is (epoch, seq), the same for pages and for subscriptions and for everybody."""

    def __init__(self, extent: streams.Extent) -> None:
        self._extent = extent

    def write(self, key: paging.Key) -> str:
        return str(streams.Cursor(self._extent.epoch, int(key)))

    def read(self, text: str, name: str, kind: type[paging.Key]) -> paging.Key:  # noqa: ARG002 - a number always
        cursor = streams.parse(text, name=name)
        if not self._extent.has(cursor):
            raise BadUserInput(f"`{name}` is no place in this stream, or not any more.", path=[name])
        return cursor.seq


async def pages(
    session: AsyncSession, arguments: paging.Arguments, *, counts: Mapping[UUID, paging.Count]
) -> Mapping[UUID, paging.Page[Activity] | BadUserInput]:
    """The same page of each project's feed."""
    extents = await streams.extents(session, list(counts))
    parents = {project_id: (Cursors(extents[project_id]), count) for project_id, count in counts.items()}
    return await paging.pages(session, _of_stream, IN_ORDER, arguments, parents=parents)


async def counts(session: AsyncSession, project_ids: Sequence[UUID]) -> Mapping[UUID, int]:
    found = await session.execute(
        select(Activity.stream_id, func.count()).where(Activity.stream_id.in_(project_ids)).group_by(Activity.stream_id)
    )
    return dict(found.all())


def _of_stream(stream_id: ColumnElement[UUID]) -> Select[Activity]:
    return select(Activity).where(Activity.stream_id == stream_id)
