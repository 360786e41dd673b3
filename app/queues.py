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

# The next tasks of every project that has room, and of all those the first. Each project's queue is read in order, only
# as far as its free places need. What holds tasks back is collected once, as sets that are looked up by hash: asked for
# task by task, a queue of which most are held would be as many small searches. Dependencies fail closed: only COMPLETED
# lets a task pass.
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
      AND coalesce(coalesce(s.cost_micro_usd, 0) / 1000000::float < (p.settings->>'budget_usd')::float, true)
), held AS (
    SELECT w.id FROM tasks w WHERE w.status = 'pending'
       AND EXISTS (SELECT FROM task_dependencies d JOIN tasks n ON n.id = d.depends_on_id
                   WHERE d.task_id = w.id AND n.status <> 'completed')
), blocked AS (
    SELECT b.ticket_id FROM ticket_blockers b JOIN tickets o ON o.id = b.blocker_id
    WHERE o.status NOT IN ('done', 'cancelled')
), with_machine AS (
    SELECT task_id FROM sandboxes WHERE gone_at IS NULL AND task_id IS NOT NULL
), chosen AS (
    SELECT next.id, next.rank_at FROM room CROSS JOIN LATERAL (
        SELECT t.id, t.rank_at FROM tasks t JOIN tickets k ON k.id = t.ticket_id
        WHERE t.project_id = room.id AND t.status = 'pending' AND t.due_at <= (SELECT omoi_now())
          AND (CAST(:only AS uuid) IS NULL OR t.id = :only)
          AND k.status NOT IN ('done', 'cancelled') AND k.blocked_reason IS NULL
          AND t.ticket_id NOT IN (SELECT ticket_id FROM blocked)
          AND t.id NOT IN (SELECT id FROM held)
          AND t.id NOT IN (SELECT task_id FROM with_machine)
        ORDER BY t.rank_at LIMIT greatest(room.free, 0) FOR UPDATE OF t SKIP LOCKED
    ) next
    ORDER BY next.rank_at
    LIMIT greatest(0, least(:most, :machines - (SELECT count(*) FROM sandboxes
                                                WHERE provider = :provider AND gone_at IS NULL
                                                  AND coalesce(place = :place, true))))
)
SELECT id FROM chosen ORDER BY rank_at
""")
# With less memory than its sets need Postgres would not hash them, but compare each task with each of them.
ONE_DISPATCH_AT_A_TIME = text(
    "SELECT pg_advisory_xact_lock(hashtext('omoi dispatch')), set_config('work_mem', '64MB', true)"
)


async def next_up(
    session: AsyncSession, *, provider: str, place: str | None, machines: int, most: int, only: UUID | None
) -> Sequence[UUID]:
    """Locked, the first in the queue first. One process at a time looks, so that no limit is passed by two at once."""
    await session.execute(ONE_DISPATCH_AT_A_TIME)
    given = {"provider": provider, "place": place, "machines": machines, "most": most, "only": only}
    found = await session.scalars(NEXT, given)
    return found.all()
