"""A sandbox is one try at a task, in one machine of its own. Only this module changes its status."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Select, and_, func, insert, literal, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from app import clock, ids, paging, streams, tokens
from app.auth import Principal
from app.enums import DesiredState, FailureCode, SandboxEventType, SandboxStatus
from app.errors import NotFound
from app.models import Membership, Sandbox, Task
from app.transactions import WORK, Transaction

PROVISIONING, STARTING, RUNNING, WAITING, STOPPING = (
    SandboxStatus.PROVISIONING,
    SandboxStatus.STARTING,
    SandboxStatus.RUNNING,
    SandboxStatus.WAITING,
    SandboxStatus.STOPPING,
)
ENDED = frozenset({SandboxStatus.COMPLETED, SandboxStatus.FAILED, SandboxStatus.CANCELLED, SandboxStatus.LOST})
LIVE = frozenset(SandboxStatus) - ENDED
MOVES: Mapping[SandboxStatus, frozenset[SandboxStatus]] = {
    PROVISIONING: frozenset({STARTING, RUNNING, STOPPING}) | ENDED,  # RUNNING: its worker was quicker than its launch
    STARTING: frozenset({RUNNING, STOPPING}) | ENDED,
    RUNNING: frozenset({WAITING, STOPPING}) | ENDED,
    WAITING: frozenset({RUNNING, STOPPING}) | ENDED,
    STOPPING: ENDED,
    **{status: frozenset[SandboxStatus]() for status in ENDED},
}
LEASE = timedelta(seconds=90)  # three heartbeats
STOP_GRACE = timedelta(seconds=30)
BOOT_STEPS = 50
NEWEST_FIRST = paging.Order(Sandbox.id, descending=True)

_PARENTS = {"project": Sandbox.project_id, "task": Sandbox.task_id}


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    project_id: UUID | None = None
    task_id: UUID | None = None
    statuses: tuple[SandboxStatus, ...] | None = None
    active: bool | None = None


async def insert_for(
    session: AsyncSession, tasks: Sequence[Task], *, provider: str, deployment: str, life: timedelta
) -> list[Sandbox]:
    """A row for the current attempt of each task, before its machine is asked for: intent before effect."""
    now = await session.scalar(select(clock.now()))
    assert now is not None
    rows = []
    for task in tasks:
        sandbox_id = ids.new()
        name = f"omoi-{deployment}-{ids.encode('sandbox', sandbox_id).partition('_')[2]}"
        rows.append(
            {
                "id": sandbox_id,
                "project_id": task.project_id,
                "task_id": task.id,
                "attempt": task.attempt,
                "name": name,
                "provider": provider,
                "resources": {},
                "lease_until": now + LEASE,
                "deadline_at": now + life,
            }
        )
    await streams.create(session, {row["id"]: row["project_id"] for row in rows})
    made = await session.scalars(insert(Sandbox).returning(Sandbox, sort_by_parameter_order=True), rows)
    return list(made.all())


async def equip(
    session: AsyncSession, sandbox_id: UUID, *, branch: str | None, resources: Mapping[str, Any], exposed: bool
) -> Sandbox:
    """What was exposed once stays so: a machine may be there from an earlier launch."""
    found = await session.scalars(
        update(Sandbox)
        .where(Sandbox.id == sandbox_id)
        .values(branch=branch, resources=dict(resources), exposed=or_(Sandbox.exposed.is_(True), literal(exposed)))
        .returning(Sandbox)
        .execution_options(populate_existing=True)
    )
    return found.one()


async def launched(tx: Transaction, sandbox: Sandbox, *, provider_id: str, boot: Sequence[Mapping[str, Any]]) -> bool:
    """PROVISIONING → STARTING. False: it was stopped meanwhile, or its worker has reported already."""
    values = {
        "provider_id": provider_id,
        "boot": list(boot)[:BOOT_STEPS],
        "launch_until": None,
        "lease_until": clock.now() + LEASE,
    }
    await tx.session.execute(update(Sandbox).where(Sandbox.id == sandbox.id).values(values))
    moved = await move(tx, sandbox.id, STARTING, only_from=frozenset({PROVISIONING}))
    return moved is not None


async def note_boot(session: AsyncSession, sandbox_id: UUID, steps: Sequence[Mapping[str, Any]]) -> None:
    """How far its start came, and that nobody has it in hand any more."""
    values = {"boot": list(steps)[:BOOT_STEPS], "launch_until": None}
    await session.execute(update(Sandbox).where(Sandbox.id == sandbox_id).values(values))


async def stop(tx: Transaction, sandbox_id: UUID, *, code: FailureCode, reason: str) -> None:
    """Ask a live sandbox to leave; what it does not do within the grace time is done to it. The first reason stays."""
    stopping = await move(
        tx,
        sandbox_id,
        STOPPING,
        message=reason,
        desired=DesiredState.STOP,
        stop_code=code,
        stop_reason=reason,
        force_at=clock.now() + STOP_GRACE,
    )
    if stopping is not None:
        tx.ring(inbox(sandbox_id))
        tx.ring(MACHINES)


async def move(
    tx: Transaction,
    sandbox_id: UUID,
    status: SandboxStatus,
    *,
    only_from: frozenset[SandboxStatus] | None = None,
    message: str | None = None,
    **values: Any,
) -> Sandbox | None:
    """The one place where a status is written: guarded by MOVES; None when it has gone another way before."""
    sources = only_from or frozenset(before for before, after in MOVES.items() if status in after)
    moved = await tx.session.scalars(
        update(Sandbox)
        .where(Sandbox.id == sandbox_id, Sandbox.status.in_(sources))
        .values(status=status, **values)
        .returning(Sandbox)
        .execution_options(populate_existing=True)
    )
    changed = moved.one_or_none()
    if changed is not None:
        if status in ENDED:
            tx.session.info[tokens.ENDED] = True
        tx.emit(sandbox_id, SandboxEventType.SANDBOX_STATUS, {"status": status.name, "message": message})
    return changed


async def gone(tx: Transaction, sandbox_id: UUID, *, log: str | None) -> None:
    """Its machine is no more; what its worker wrote last is kept. There is room for another one."""
    tx.ring(WORK)
    await tx.session.execute(
        update(Sandbox)
        .where(Sandbox.id == sandbox_id, Sandbox.status.in_(ENDED), Sandbox.gone_at.is_(None))
        .values(gone_at=clock.now(), log=func.coalesce(log, Sandbox.log))
    )


async def lock(session: AsyncSession, sandbox_id: UUID) -> Sandbox:
    """Its task's row first, then its own, in the order that holds everywhere."""
    await session.execute(
        select(Task.id)
        .where(Task.id == select(Sandbox.task_id).where(Sandbox.id == sandbox_id).scalar_subquery())
        .with_for_update(key_share=True)
    )
    found = await session.scalars(
        select(Sandbox)
        .where(Sandbox.id == sandbox_id)
        .with_for_update(key_share=True)
        .execution_options(populate_existing=True)
    )
    sandbox = found.one_or_none()
    if sandbox is None:
        raise NotFound(path=["sandboxId"])
    return sandbox


async def live_of(session: AsyncSession, task_ids: Sequence[UUID]) -> Mapping[UUID, Sandbox]:
    """The sandbox that works on each task now."""
    found = await session.scalars(select(Sandbox).where(Sandbox.task_id.in_(task_ids), Sandbox.status.in_(LIVE)))
    return {sandbox.task_id: sandbox for sandbox in found if sandbox.task_id is not None}


async def last_of(session: AsyncSession, task_id: UUID, *, before_attempt: int) -> Sandbox | None:
    found = await session.scalars(
        select(Sandbox)
        .where(Sandbox.task_id == task_id, Sandbox.attempt < before_attempt, Sandbox.accepted_through > 0)
        .order_by(Sandbox.attempt.desc())
        .limit(1)
    )
    return found.one_or_none()


async def by_ids(session: AsyncSession, sandbox_ids: Sequence[UUID]) -> Sequence[Sandbox]:
    found = await session.scalars(select(Sandbox).where(Sandbox.id.in_(sandbox_ids)))
    return found.all()


def of(kind: str, parent: UUID | ColumnElement[UUID], wanted: Filter) -> Select[Sandbox]:
    """The sandboxes of a project or of a task."""
    return select(Sandbox).where(_PARENTS[kind] == parent, *_conditions(wanted))


def visible(principal: Principal, wanted: Filter) -> Select[Sandbox]:
    """Those of all projects that a principal belongs to."""
    mine = and_(Membership.project_id == Sandbox.project_id, Membership.user_id == principal.id)
    return select(Sandbox).join(Membership, mine).where(*_conditions(wanted))


async def count_visible(session: AsyncSession, principal: Principal, wanted: Filter) -> int:
    return await session.scalar(visible(principal, wanted).with_only_columns(func.count())) or 0


async def count_live(session: AsyncSession) -> int:
    return await session.scalar(select(func.count()).select_from(Sandbox).where(Sandbox.status.in_(LIVE))) or 0


async def counts(session: AsyncSession, kind: str, parents: Sequence[UUID], wanted: Filter) -> Mapping[UUID, int]:
    column = _PARENTS[kind]
    found = await session.execute(
        select(column, func.count()).where(column.in_(parents), *_conditions(wanted)).group_by(column)
    )
    return {parent: number for parent, number in found if parent is not None}


def _conditions(wanted: Filter) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    if wanted.project_id is not None:
        conditions.append(Sandbox.project_id == wanted.project_id)
    if wanted.task_id is not None:
        conditions.append(Sandbox.task_id == wanted.task_id)
    if wanted.statuses is not None:
        conditions.append(Sandbox.status.in_(wanted.statuses))
    if wanted.active is not None:
        conditions.append(Sandbox.status.in_(LIVE if wanted.active else ENDED))
    return conditions


def inbox(sandbox_id: UUID) -> str:
    """The topic that is rung when a worker should look."""
    return f"inbox:{sandbox_id}"


LAUNCH_TOPIC = "launch"
MACHINES = "machines"  # a machine may be deleted
