"""Answers about what happened in a project."""

from typing import Any, NamedTuple

from app import feeds, ids, paging, streams
from app.models import Activity, Project
from app.sources import Source
from resolvers.context import Context
from resolvers.live import Live, live
from resolvers.nodes import load


class Entry(NamedTuple):
    """One row of the feed, with the cursor that resumes after it."""

    row: Activity
    cursor: str


class Told(NamedTuple):
    activities: list[Entry]
    cursor: str
    caught_up: bool
    reset: feeds.Reset | None


async def activity_of_project(context: Context, project: Project, **page: Any) -> paging.Page[Entry]:
    found: paging.Page[Activity] = await context.loaders.activity_pages.load((project.id, paging.Arguments(**page)))
    entries = [Entry(row, cursor) for row, cursor in zip(found.rows, found.cursors, strict=True)]
    return paging.Page(entries, found.cursors, found.has_next, found.has_previous, found.count)


def follow(context: Context, root: Any, project_id: str, after: str | None = None) -> Live:
    key = ids.require(project_id, "project", "projectId")
    return live(context, Source(stream_id=key, project_id=key, table=Activity), after, _told)


def _told(batch: feeds.Batch) -> Told:
    entries = [Entry(row, str(streams.Cursor(batch.end.epoch, row.seq))) for row in batch.rows]
    return Told(entries, str(batch.end), batch.caught_up, batch.reset)


async def subject_of(context: Context, entry: Entry) -> Any:
    return await load(context, entry.row.subject_kind, entry.row.subject_id)
