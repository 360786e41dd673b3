"""Answers about the server itself."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from app import health, sandboxes
from app.enums import HealthStatus
from app.models import LoopRun
from resolvers.context import Context


class Reading(NamedTuple):
    status: HealthStatus
    version: str
    components: Sequence[health.Component]
    loops: Sequence[LoopRun]
    pending_tasks: int | None
    active_sandboxes: int | None
    oldest_due_task_seconds: float | None


async def read(context: Context, root: Any) -> Reading:
    """The numbers of the whole server are for admins alone."""
    services = context.services
    components = [*await health.components(services.db, services.bus)]
    if services.fleet_health:
        components.append(services.fleet_health())
    async with services.db.reading() as session:
        loops = await health.loops(session)
        backlog = await health.backlog(session) if context.principal.admin else None
        active = await sandboxes.count_live(session) if context.principal.admin else None
    return Reading(
        health.overall(components, loops),
        health.VERSION,
        components,
        loops,
        backlog.pending_tasks if backlog else None,
        active,
        backlog.oldest_due_task_seconds if backlog else None,
    )
