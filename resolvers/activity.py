"""Answers about what happened in a project."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, NamedTuple

from app import activity, ids, paging, streams
from app.models import Activity, Project
from resolvers.context import Context
from resolvers.nodes import load


class Entry(NamedTuple):
    """One row of the feed, with the cursor that resumes after it."""

    row: Activity
    cursor: str


class Batch(NamedTuple):
    activities: list[Entry]
    cursor: str
    caught_up: bool
    reset: streams.Reset | None


async def activity_of_project(context: Context, project: Project, **page: Any) -> paging.Page[Entry]:
    found: paging.Page[Activity] = await context.loaders.activity_pages.load((project.id, paging.Arguments(**page)))
    entries = [Entry(row, cursor) for row, cursor in zip(found.rows, found.cursors, strict=True)]
    return paging.Page(entries, found.cursors, found.has_next, found.has_previous, found.count)


async def follow(context: Context, root: Any, project_id: str, after: str | None = None) -> AsyncGenerator[Batch]:
    services = context.services
    batches = activity.follow(
        services.db,
        services.bus,
        context.principal,
        ids.require(project_id, "project", "projectId"),
        after=context.resume_after or after,
        poll_seconds=services.settings.stream_poll_seconds,
    )
    async with aclosing(batches):
        async for batch in batches:
            entries = [Entry(row, str(streams.Cursor(batch.epoch, row.seq))) for row in batch.rows]
            yield Batch(entries, batch.cursor, batch.caught_up, batch.reset)


async def subject_of(context: Context, entry: Entry) -> Any:
    return await load(context, entry.row.subject_kind, entry.row.subject_id)
