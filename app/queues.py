"""Which tasks come next: the order of the queue, and all that holds a task back from its turn."""

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

# A place in the queue is a moment: the task's creation, later by its priority, earlier for what waits for it, and not
# later than an hour before its deadline. So priority counts first, and whoever has waited long enough comes first.
RANK = text("""
    least(created_at + CASE priority WHEN 'critical' THEN interval '0' WHEN 'high' THEN interval '30 minutes'
                                     WHEN 'medium' THEN interval '2 hours' ELSE interval '12 hours' END
              - interval '10 minutes' * least(10, (SELECT count(*) FROM task_dependencies d JOIN tasks w
                    ON w.id = d.task_id WHERE d.depends_on_id = tasks.id AND w.status = 'pending')),
          deadline_at - interval '1 hour')
""")

# The next tasks of every project that has room, and of all those the first: what is read grows with the number of
# projects and their free places, never with the queue. Dependencies fail closed: only COMPLETED lets a task pass.
# They are asked for task by task: as NOT EXISTS all dependencies would be read anew for each project.
NEXT = text("""
WITH room AS (
    SELECT p.id, coalesce((p.settings->>'concurrency')::int, 4) - coalesce(live.n, 0) AS free
    FROM projects p
    LEFT JOIN (SELECT project_id, count(*) AS n FROM sandboxes
               WHERE status NOT IN ('completed', 'failed', 'cancelled', 'lost') GROUP BY 1) live
         ON live.project_id = p.id
    LEFT JOIN spendings s ON s.project_id = p.id
    WHERE p.archived_at IS NULL
      AND EXISTS (SELECT FROM tasks WHERE project_id = p.id AND status = 'pending')
      AND coalesce(s.cost_micro_usd < (p.settings->>'budget_usd')::float * 1000000,
                   p.settings->>'budget_usd' IS NULL OR (p.settings->>'budget_usd')::float > 0)
), chosen AS (
    SELECT next.id, next.rank_at FROM room CROSS JOIN LATERAL (
        SELECT t.id, t.rank_at FROM tasks t JOIN tickets k ON k.id = t.ticket_id
        WHERE t.project_id = room.id AND t.status = 'pending' AND t.due_at <= omoi_now()
          AND (CAST(:only AS uuid) IS NULL OR t.id = :only)
          AND k.status NOT IN ('done', 'cancelled') AND k.blocked_reason IS NULL
          AND NOT EXISTS (SELECT FROM ticket_blockers b JOIN tickets o ON o.id = b.blocker_id
                          WHERE b.ticket_id = k.id AND o.status NOT IN ('done', 'cancelled'))
          AND (SELECT true FROM task_dependencies d JOIN tasks n ON n.id = d.depends_on_id
               WHERE d.task_id = t.id AND n.status <> 'completed' LIMIT 1) IS NULL
          AND NOT EXISTS (SELECT FROM sandboxes x WHERE x.task_id = t.id AND x.gone_at IS NULL)
        ORDER BY t.rank_at LIMIT greatest(room.free, 0) FOR UPDATE OF t SKIP LOCKED
    ) next
    ORDER BY next.rank_at
    LIMIT greatest(0, least(:most, :machines - (SELECT count(*) FROM sandboxes
                                                WHERE provider = :provider AND gone_at IS NULL)))
)
SELECT id FROM chosen ORDER BY rank_at
""")
ONE_DISPATCH_AT_A_TIME = text("SELECT pg_advisory_xact_lock(hashtext('omoi dispatch'))")


async def next_up(
    session: AsyncSession, *, provider: str, machines: int, most: int, only: UUID | None
) -> Sequence[UUID]:
    """Locked, the first in the queue first. One process at a time looks, so that no limit is passed by two at once."""
    await session.execute(ONE_DISPATCH_AT_A_TIME)
    found = await session.scalars(NEXT, {"provider": provider, "machines": machines, "most": most, "only": only})
    return found.all()
