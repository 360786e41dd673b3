"""How the server is: its parts, its loops, and what waits."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from importlib.metadata import version

from sqlalchemy import delete, func, select
from sqlalchemy.dialects.postgresql import distinct_on, insert
from sqlalchemy.ext.asyncio import AsyncSession

from app import clock
from app.bus import Bus
from app.db import Database, DatabaseUnavailable
from app.enums import HealthStatus, TaskStatus
from app.models import LoopRun, Task

VERSION = version("omoios")
RUNS_KEPT = timedelta(days=1)
LATELY = timedelta(minutes=5)  # longer than any loop's pause


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    name: str
    status: HealthStatus
    detail: str | None = None
    latency_ms: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    pending_tasks: int
    oldest_due_task_seconds: float | None


async def components(db: Database, bus: Bus) -> Sequence[Component]:
    return [await _database(db), await _bus(bus)]


def overall(parts: Sequence[Component], loops: Sequence[LoopRun] = ()) -> HealthStatus:
    """The worst of its parts; a loop that fails is no end, but it is not well either."""
    order = [HealthStatus.OK, HealthStatus.DEGRADED, HealthStatus.DOWN]
    failing = [HealthStatus.DEGRADED for loop in loops if loop.last_error]
    return max([part.status for part in parts] + failing, key=order.index)


async def loops(session: AsyncSession) -> Sequence[LoopRun]:
    """The newest run of each loop, whichever process made it."""
    found = await session.scalars(
        select(LoopRun).ext(distinct_on(LoopRun.name)).order_by(LoopRun.name, LoopRun.last_run_at.desc())
    )
    return found.all()


async def orchestrated(session: AsyncSession) -> bool:
    """Whether any process runs the loops, as far as they have said lately."""
    recently = select(LoopRun.name).where(LoopRun.last_run_at > clock.now() - LATELY)
    return bool(await session.scalar(select(recently.exists())))


async def backlog(session: AsyncSession) -> Backlog:
    found = await session.execute(
        select(func.count(), func.max(func.extract("epoch", clock.now() - Task.due_at))).where(
            Task.status == TaskStatus.PENDING, Task.due_at <= clock.now()
        )
    )
    number, oldest = found.one()
    return Backlog(pending_tasks=number, oldest_due_task_seconds=None if oldest is None else float(oldest))


async def _database(db: Database) -> Component:
    started = time.perf_counter()
    try:
        await db.ping()
    except DatabaseUnavailable as error:
        return Component(name="database", status=HealthStatus.DOWN, detail=error.message)
    return Component(name="database", status=HealthStatus.OK, latency_ms=_since(started))


async def _bus(bus: Bus) -> Component:
    if bus.backend is None:
        return Component(name="bus", status=HealthStatus.OK, detail="in memory, for one process")
    started = time.perf_counter()
    if not await bus.backend.ping():
        detail = "Redis cannot be reached; live streams fall back to polling."
        return Component(name="bus", status=HealthStatus.DEGRADED, detail=detail)
    return Component(name="bus", status=HealthStatus.OK, detail="Redis", latency_ms=_since(started))


def _since(started: float) -> float:
    return round((time.perf_counter() - started) * 1000, 3)


async def note_run(
    session: AsyncSession, name: str, process: str, *, milliseconds: float, error: str | None, runs: int = 1
) -> None:
    """Remember a loop's last run, and how many there were, for everybody who asks any replica."""
    values = {"last_run_at": clock.now(), "last_duration_ms": milliseconds, "last_error": error}
    await session.execute(
        insert(LoopRun)
        .values(name=name, process=process, runs=runs, **values)
        .on_conflict_do_update(index_elements=["name", "process"], set_={**values, "runs": LoopRun.runs + runs})
    )


async def forget_old_runs(session: AsyncSession) -> None:
    """Processes that are gone have nothing to say about how the loops are."""
    await session.execute(delete(LoopRun).where(LoopRun.last_run_at < clock.now() - RUNS_KEPT))
