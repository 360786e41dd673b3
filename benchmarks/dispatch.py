"""Claiming the next tasks out of 10,000 that wait, beside out of 10. Goal: at most 20 ms, and three statements."""

import asyncio
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
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
PROJECTS = 10
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
# Each waits for one that is still pending, so that the queue has to be gone through to its last places.
HELD = """
    INSERT INTO task_dependencies (project_id, task_id, depends_on_id)
    SELECT project_id, id, (SELECT id FROM tasks WHERE project_id = $1 ORDER BY rank_at DESC LIMIT 1)
    FROM (SELECT project_id, id FROM tasks WHERE project_id = $1 ORDER BY rank_at OFFSET 0
          LIMIT (SELECT count(*) - 1 FROM tasks WHERE project_id = $1)) AS earlier
"""


def main() -> None:
    with ExitStack() as stack:
        few, many, held = (stack.enter_context(omoi(ORCHESTRATOR_ENABLED="false")) for _ in range(3))
        for server, count, statements in ((few, FEW, ()), (many, MANY, ()), (held, MANY, (HELD,))):
            projects = [rows.project(server) for _ in range(PROJECTS)]
            asyncio.run(_fill(server, projects, count // PROJECTS, statements))
        asyncio.run(_compare({f"{FEW}": few, f"{MANY:,}": many, f"{MANY:,} of which {PROJECTS} may start": held}))


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
            ratio, made = milliseconds / medians[str(FEW)], await _statements(databases[name])
            worst = sorted(times[name])[ROUNDS * 95 // 100]
            print(
                f"{name:>30} pending: {milliseconds:6.2f} ms (95 %: {worst:6.2f}), ratio {ratio:5.2f}, "
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
