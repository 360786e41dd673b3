"""Claiming the next tasks of 10,000 pending, in each shape that is hard, beside 10. Goal: 20 ms, three statements."""

import asyncio
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import asyncpg
from sqlalchemy import event

from app import ids, tasks
from app.attempts import CLAIMS
from app.db import Database
from app.postgres import attached
from benchmarks import rows
from benchmarks.processes import Measured, omoi

FEW, MANY = 10, 10_000
ROUNDS = 200
GOAL_MS = 20.0
GOAL_STATEMENTS = 3
TASKS = """
    INSERT INTO tasks (id, project_id, ticket_id, title, description, phase, status, priority, attempt, max_attempts,
                       resume, rank_at)
    SELECT gen_random_uuid(), k.project_id, k.id, 'Task ' || n, '', 'implementation', 'pending', 'medium', 0, 3, false,
           omoi_now() + n * interval '1 second'
    FROM generate_series(1, $2::int) AS n JOIN tickets k ON k.project_id = $1 AND k.number = 1 + n % least(100, $2)
"""
# Each waits for the project's last one, so that the queue has to be gone through to its end.
HELD = """
    INSERT INTO task_dependencies (project_id, task_id, depends_on_id)
    SELECT project_id, id, (SELECT id FROM tasks WHERE project_id = $1 ORDER BY rank_at DESC LIMIT 1)
    FROM (SELECT project_id, id FROM tasks WHERE project_id = $1 ORDER BY rank_at OFFSET 0
          LIMIT (SELECT count(*) - 1 FROM tasks WHERE project_id = $1)) AS earlier
"""
# Each needs ten more, which are done, so that the one that holds it back is hard to find.
DONE = """
    WITH done AS (
        INSERT INTO tasks (id, project_id, ticket_id, title, description, phase, status, priority, attempt,
                           max_attempts, resume, rank_at, result, finished_at)
        SELECT gen_random_uuid(), k.project_id, k.id, 'Done ' || n, '', 'implementation', 'completed', 'medium', 1, 3,
               false, omoi_now(), '{}', omoi_now()
        FROM tickets k, generate_series(1, 10) AS n WHERE k.project_id = $1 AND k.number = 1
        RETURNING project_id, id
    )
    INSERT INTO task_dependencies (project_id, task_id, depends_on_id)
    SELECT t.project_id, t.id, done.id FROM tasks t JOIN done USING (project_id) WHERE t.status = 'pending'
"""
BLOCKED = "UPDATE tickets SET blocked_reason = 'No fuel' WHERE project_id = $1 AND number < 100"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A queue: so many tasks in so many projects, and what holds them back."""

    name: str
    tasks: int = MANY
    projects: int = 10
    statements: tuple[str, ...] = ()


SHAPES = (
    Shape(name=f"{FEW} pending", tasks=FEW),
    Shape(name=f"{MANY:,} pending"),
    Shape(name="in 100 projects", projects=100),
    Shape(name="all but 10 wait", statements=(HELD,)),
    Shape(name="all but 100 wait, 100 projects", projects=100, statements=(HELD,)),
    Shape(name="each waits for 11", statements=(HELD, DONE)),
    Shape(name="99 of 100 tickets blocked", statements=(BLOCKED,)),
)


def main() -> None:
    with ExitStack() as stack:
        servers = {shape.name: stack.enter_context(omoi(ORCHESTRATOR_ENABLED="false")) for shape in SHAPES}
        for shape in SHAPES:
            server = servers[shape.name]
            projects = [rows.project(server) for _ in range(shape.projects)]
            asyncio.run(_fill(server, projects, shape.tasks // shape.projects, shape.statements))
        asyncio.run(_compare(servers))


async def _fill(server: Measured, projects: list[str], count: int, statements: tuple[str, ...]) -> None:
    """So many tasks for each project, in a hundred tickets."""
    async with attached(Path(server.data), holder="benchmark") as url:
        connection: asyncpg.Connection = await rows.connect(url)
        for project_id in projects:
            project = ids.require(project_id, "project")
            await connection.execute(rows.TICKETS, project, 1, 100)
            await connection.execute(TASKS, project, count)
            for statement in statements:
                await connection.execute(statement, project)
        await connection.execute("VACUUM ANALYZE")
        await connection.close()


async def _compare(servers: dict[str, Measured]) -> None:
    """Medians, each queue asked in turn, so that a noisy moment strikes them alike."""
    async with AsyncExitStack() as stack:
        databases = {name: await stack.enter_async_context(_database(server)) for name, server in servers.items()}
        times: dict[str, list[float]] = {name: [] for name in servers}
        for _ in range(ROUNDS):
            for name, db in databases.items():
                times[name].append(await _claim_ms(db))
        medians = {name: statistics.median(taken) for name, taken in times.items()}
        for name, milliseconds in medians.items():
            ratio, made = milliseconds / medians[SHAPES[0].name], await _statements(databases[name])
            worst = sorted(times[name])[ROUNDS * 95 // 100]
            print(
                f"{name:>30}: {milliseconds:6.2f} ms (95 %: {worst:6.2f}), ratio {ratio:5.2f}, "
                f"{made} statements; goals {GOAL_MS:.0f} ms and {GOAL_STATEMENTS} statements"
            )


@asynccontextmanager
async def _database(server: Measured) -> AsyncIterator[Database]:
    async with attached(Path(server.data), holder="benchmark") as url:
        db = Database(url, connections=1)
        yield db
        await db.close()


async def _claim_ms(db: Database) -> float:
    """One claim, which is taken back, so that the next one finds the same queue."""
    async with db.reading() as session:
        started = time.perf_counter()
        claimed = await tasks.claim(session, provider="nowhere", machines=1_000, most=CLAIMS)
        taken = (time.perf_counter() - started) * 1000
        assert claimed
        await session.rollback()
    return taken


async def _statements(db: Database) -> int:
    made: list[str] = []
    event.listen(db.engine.sync_engine, "before_cursor_execute", lambda *given: made.append(given[2]))
    await _claim_ms(db)
    return len(made)


if __name__ == "__main__":
    main()
