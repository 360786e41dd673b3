"""A task is one piece of work for one agent. Only this module changes its status."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Select, func, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from app import clock, graphs, ids, paging, projects, queues, sandboxes
from app.enums import FailureCode, PrincipalKind, Priority, TaskPhase, TaskStatus, TicketStatus
from app.errors import Conflict, DependencyCycle, InvalidTransition, NotFound
from app.inputs import LINE_CHARS, Checks
from app.models import Project, Task, TaskDependency, Ticket
from app.transactions import Transaction

MOVES: Mapping[TaskStatus, frozenset[TaskStatus]] = {
    TaskStatus.PENDING: frozenset({TaskStatus.ASSIGNED, TaskStatus.CANCELLED}),
    TaskStatus.ASSIGNED: frozenset(
        {TaskStatus.RUNNING, TaskStatus.PENDING, TaskStatus.FAILED, TaskStatus.CANCELLED}  # PENDING: the next attempt
    ),
    TaskStatus.RUNNING: frozenset({TaskStatus.COMPLETED, TaskStatus.PENDING, TaskStatus.FAILED, TaskStatus.CANCELLED}),
    TaskStatus.COMPLETED: frozenset(),
    TaskStatus.FAILED: frozenset({TaskStatus.PENDING}),  # somebody retries it
    TaskStatus.CANCELLED: frozenset({TaskStatus.PENDING}),
}
ENDED = frozenset({TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.CANCELLED})
OPEN = frozenset(TaskStatus) - ENDED
WORKED_ON = frozenset({TaskStatus.ASSIGNED, TaskStatus.RUNNING})
CLOSED_TICKETS = (TicketStatus.DONE, TicketStatus.CANCELLED)
MOST_ATTEMPTS = 20
OLDEST_FIRST = paging.Order(Task.id)
DEPENDENCIES = graphs.Edges(
    table=TaskDependency, waits="task_id", needs="depends_on_id", nodes=Task, argument="dependsOn"
)

# What is tried again by itself, and the first pause before it. The rest needs a person, or would end the same way.
PAUSES: Mapping[FailureCode, float] = {
    FailureCode.SANDBOX_LOST: 2.0,
    FailureCode.KILLED: 5.0,
    FailureCode.SPAWN_FAILED: 10.0,
    FailureCode.STALLED: 10.0,
    FailureCode.AGENT_ERROR: 15.0,
    FailureCode.OUT_OF_MEMORY: 30.0,
}
LONGEST_PAUSE_SECONDS = 300.0
PAUSE_DOUBLINGS = 10

_PARENTS = {"project": Task.project_id, "ticket": Task.ticket_id}


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    statuses: tuple[TaskStatus, ...] | None = None
    phases: tuple[TaskPhase, ...] | None = None
    ticket_id: UUID | None = None


async def create(
    tx: Transaction,
    ticket_id: UUID,
    *,
    title: str,
    description: str = "",
    phase: TaskPhase = TaskPhase.IMPLEMENTATION,
    priority: Priority | None = None,
    depends_on: Sequence[UUID] = (),
    max_attempts: int | None = None,
    deadline_at: datetime | None = None,
) -> Task:
    """Queued at once; it starts when everything it depends on is completed."""
    with Checks() as checks:
        title = checks.line(title, "title")
        description = checks.block(description, "description")
        if max_attempts is not None:
            checks.between(max_attempts, 1, MOST_ATTEMPTS, "maxAttempts")
    project = await projects.lock(tx.session, await _project_of_ticket(tx.session, ticket_id))
    ticket = await _open_ticket(tx.session, ticket_id)
    task = await insert(
        tx,
        ticket,
        project,
        title=title,
        description=description,
        phase=phase,
        priority=priority,
        max_attempts=max_attempts,
        deadline_at=deadline_at,
    )
    if depends_on:
        await graphs.replace(tx.session, DEPENDENCIES, project_id=project.id, node=task.id, needs=depends_on)
        await _rank(tx.session, depends_on)
    return task


async def insert(tx: Transaction, ticket: Ticket, project: Project, **given: Any) -> Task:
    """A pending task of this ticket, from values that were checked before."""
    given["priority"] = given.get("priority") or ticket.priority
    given["phase"] = given.get("phase") or TaskPhase.IMPLEMENTATION
    given["max_attempts"] = given.get("max_attempts") or projects.ProjectSettings.stored(project.settings).max_attempts
    if tx.principal.kind in (PrincipalKind.USER, PrincipalKind.SERVICE):
        given["created_by"] = tx.principal.id
    task = Task(id=ids.new(), project_id=ticket.project_id, ticket_id=ticket.id, **given)
    tx.session.add(task)
    await tx.session.flush()
    await _rank(tx.session, [task.id])
    await tx.session.refresh(task)
    tx.record("task.created", task.id, f"queued {task.title} for #{ticket.number}", project_id=task.project_id)
    return task


async def set_dependencies(tx: Transaction, task_id: UUID, depends_on: Sequence[UUID]) -> Task:
    """Let the task wait for exactly these; only while it is pending. A cycle is refused with its path."""
    project_id = await project_of(tx.session, task_id)
    await projects.lock(tx.session, project_id)
    task = await _lock(tx.session, task_id)
    if task.status is not TaskStatus.PENDING:
        raise Conflict(f"The task is {task.status.name}; what it depends on matters only while it is PENDING.")
    before = (await graphs.neighbours(tx.session, DEPENDENCIES, [task_id])).get(task_id, ())
    try:
        changed = await graphs.replace(tx.session, DEPENDENCIES, project_id=project_id, node=task_id, needs=depends_on)
    except DependencyCycle as cycle:
        raise await _named(tx.session, cycle) from None
    if changed:
        await _rank(tx.session, [*depends_on, *(other.id for other in before)])
        tx.record("task.dependencies_set", task_id, f"changed what {task.title} depends on", project_id=project_id)
    return task


async def cancel(tx: Transaction, task_id: UUID, *, reason: str | None) -> Task:
    """PENDING, ASSIGNED or RUNNING → CANCELLED. A task that has ended stays as it ended. Archived or not."""
    with Checks() as checks:
        reason = checks.line(reason, "reason") if reason else f"Cancelled by {tx.principal.name}."[:LINE_CHARS]
    await projects.hold(tx.session, await project_of(tx.session, task_id), even_archived=True)
    task = await _lock(tx.session, task_id)
    if task.status is TaskStatus.CANCELLED:
        return task
    return await _cancel(tx, task, reason)


async def cancel_open(tx: Transaction, ticket: Ticket, *, reason: str) -> None:
    """Cancel what has not ended of a ticket's tasks."""
    found = await tx.session.scalars(
        select(Task).where(Task.ticket_id == ticket.id, Task.status.in_(OPEN)).order_by(Task.id).with_for_update()
    )
    for task in found.all():
        await _cancel(tx, task, reason)


async def retry(tx: Transaction, task_id: UUID, *, resume: bool = False) -> Task:
    """FAILED or CANCELLED → PENDING, due now. When its attempts are used up it gets one more.

    With `resume` the next try goes on with the session of the last one, and with its edits as far as they are recorded.
    """
    await projects.hold(tx.session, await project_of(tx.session, task_id))
    await _open_ticket(tx.session, await _ticket_of(tx.session, task_id))
    task = await _lock(tx.session, task_id)
    most = max(task.max_attempts, task.attempt + 1)
    values = {
        "max_attempts": most,
        "failure_code": None,
        "failure_message": None,
        "due_at": clock.now(),
        "resume": resume,
        "assigned_at": None,
        "started_at": None,
        "finished_at": None,
    }
    retried = await _move(
        tx.session, task, TaskStatus.PENDING, values, only_from=frozenset({TaskStatus.FAILED, TaskStatus.CANCELLED})
    )
    tx.record("task.retried", task_id, f"queued {task.title} again", project_id=task.project_id)
    return retried


async def claim(
    session: AsyncSession,
    *,
    provider: str,
    machines: int,
    most: int,
    place: str | None = None,
    only: UUID | None = None,
) -> Sequence[Task]:
    """PENDING → ASSIGNED with the next attempt, for as many as there is room for; three statements for any queue."""
    chosen = await queues.next_up(session, provider=provider, place=place, machines=machines, most=most, only=only)
    if not chosen:
        return []
    claimed = await session.scalars(
        update(Task)
        .where(Task.id.in_(chosen), Task.status == TaskStatus.PENDING)
        .values(status=TaskStatus.ASSIGNED, attempt=Task.attempt + 1, assigned_at=clock.now(), started_at=None)
        .returning(Task)
        .execution_options(populate_existing=True)
    )
    rank = {task_id: number for number, task_id in enumerate(chosen)}
    return sorted(claimed, key=lambda task: rank[task.id])


async def begin(tx: Transaction, task_id: UUID, *, attempt: int) -> None:
    """ASSIGNED → RUNNING, told by the worker of this very attempt."""
    task = await _lock(tx.session, task_id)
    if task.status is TaskStatus.ASSIGNED and task.attempt == attempt:
        await _move(tx.session, task, TaskStatus.RUNNING, {"started_at": clock.now()})
        tx.record("task.started", task.id, f"started {task.title}", project_id=task.project_id)


async def complete(tx: Transaction, task_id: UUID, *, attempt: int, result: Mapping[str, Any]) -> Task | None:
    """ASSIGNED or RUNNING → COMPLETED by this very attempt; None when it has ended, or another attempt has begun."""
    task = await _lock(tx.session, task_id)
    if task.attempt != attempt or task.status not in WORKED_ON:
        return None
    if task.status is TaskStatus.ASSIGNED:
        task = await _move(tx.session, task, TaskStatus.RUNNING, {"started_at": clock.now()})
    done = await _move(
        tx.session, task, TaskStatus.COMPLETED, {"result": dict(result), "resume": False, "finished_at": clock.now()}
    )
    tx.record("task.completed", task.id, f"completed {task.title}", project_id=task.project_id)
    return done


async def fail(
    tx: Transaction, task_id: UUID, *, attempt: int, code: FailureCode, message: str, again: bool = True
) -> Task | None:
    """An attempt ended without a result: PENDING again after a pause, or FAILED when that cannot help."""
    task = await _lock(tx.session, task_id)
    if task.attempt != attempt or task.status not in WORKED_ON:
        return None
    if again and code in PAUSES and task.attempt < task.max_attempts:
        values = {"due_at": clock.now() + pause(code, task.attempt), "assigned_at": None, "started_at": None}
        waiting = await _move(tx.session, task, TaskStatus.PENDING, values)
        what = f"queued {task.title} again after attempt {task.attempt}: {message}"
        tx.record("task.requeued", task.id, what[:LINE_CHARS], project_id=task.project_id)
        return waiting
    if code is FailureCode.SANDBOX_LOST:
        code, message = FailureCode.POISON, f"Attempt {task.attempt} of {task.max_attempts} was the last. {message}"
    end = {"failure_code": code, "failure_message": message, "finished_at": clock.now()}
    failed = await _move(tx.session, task, TaskStatus.FAILED, end)
    tx.record("task.failed", task.id, f"gave up {task.title}: {message}"[:LINE_CHARS], project_id=task.project_id)
    return failed


def pause(code: FailureCode, attempt: int) -> timedelta:
    """Longer after each attempt, and never the same for two tasks that failed together."""
    longest = min(PAUSES[code] * 2 ** min(attempt - 1, PAUSE_DOUBLINGS), LONGEST_PAUSE_SECONDS)
    return timedelta(seconds=random.uniform(longest / 2, longest))  # noqa: S311 - spreads, guards nothing


async def project_of(session: AsyncSession, task_id: UUID) -> UUID:
    project_id = await session.scalar(select(Task.project_id).where(Task.id == task_id))
    if project_id is None:
        raise NotFound(path=["taskId"])
    return project_id


async def by_ids(session: AsyncSession, task_ids: Sequence[UUID]) -> Sequence[Task]:
    found = await session.scalars(select(Task).where(Task.id.in_(task_ids)))
    return found.all()


def of(kind: str, parent: UUID | ColumnElement[UUID], wanted: Filter) -> Select[Task]:
    """The tasks of a project or of a ticket."""
    return select(Task).where(_PARENTS[kind] == parent, *_conditions(wanted))


async def counts(session: AsyncSession, kind: str, parents: Sequence[UUID], wanted: Filter) -> Mapping[UUID, int]:
    column = _PARENTS[kind]
    found = await session.execute(
        select(column, func.count()).where(column.in_(parents), *_conditions(wanted)).group_by(column)
    )
    return dict(found.all())


def _conditions(wanted: Filter) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    if wanted.statuses is not None:
        conditions.append(Task.status.in_(wanted.statuses))
    if wanted.phases is not None:
        conditions.append(Task.phase.in_(wanted.phases))
    if wanted.ticket_id is not None:
        conditions.append(Task.ticket_id == wanted.ticket_id)
    return conditions


async def _cancel(tx: Transaction, task: Task, reason: str) -> Task:
    values = {"failure_code": FailureCode.CANCELLED, "failure_message": reason, "finished_at": clock.now()}
    cancelled = await _move(tx.session, task, TaskStatus.CANCELLED, values)
    live = await sandboxes.live_of(tx.session, [task.id])
    if task.id in live:
        await sandboxes.stop(tx, live[task.id].id, code=FailureCode.CANCELLED, reason=reason)
    tx.record("task.cancelled", task.id, f"cancelled {task.title}", project_id=task.project_id)
    return cancelled


async def _move(
    session: AsyncSession,
    task: Task,
    status: TaskStatus,
    values: Mapping[str, Any],
    *,
    only_from: frozenset[TaskStatus] | None = None,
) -> Task:
    """The one place where a status is written: guarded by MOVES, and the first terminal state wins."""
    sources = only_from or frozenset(before for before, after in MOVES.items() if status in after)
    moved = await session.scalars(
        update(Task)
        .where(Task.id == task.id, Task.status.in_(sources))
        .values(status=status, **values)
        .returning(Task)
        .execution_options(populate_existing=True)
    )
    changed = moved.one_or_none()
    if changed is None:
        raise _refused(task, status)
    return changed


async def _rank(session: AsyncSession, task_ids: Sequence[UUID]) -> None:
    """Give these their places in the queue anew."""
    placed = update(Task).where(Task.id.in_(task_ids)).values(rank_at=queues.RANK)
    await session.execute(placed.execution_options(synchronize_session=False))


async def _lock(session: AsyncSession, task_id: UUID) -> Task:
    found = await session.scalars(
        select(Task).where(Task.id == task_id).with_for_update(key_share=True).execution_options(populate_existing=True)
    )
    return found.one()


async def _ticket_of(session: AsyncSession, task_id: UUID) -> UUID:
    found = await session.scalars(select(Task.ticket_id).where(Task.id == task_id))
    return found.one()


async def _project_of_ticket(session: AsyncSession, ticket_id: UUID) -> UUID:
    project_id = await session.scalar(select(Ticket.project_id).where(Ticket.id == ticket_id))
    if project_id is None:
        raise NotFound(path=["ticketId"])
    return project_id


async def _open_ticket(session: AsyncSession, ticket_id: UUID) -> Ticket:
    """The ticket, which stays open until this transaction ends: who cancels it meanwhile waits, and finds the task."""
    ticket = (
        await session.scalars(
            select(Ticket)
            .where(Ticket.id == ticket_id)
            .with_for_update(read=True)
            .execution_options(populate_existing=True)
        )
    ).one()
    if ticket.status in CLOSED_TICKETS:
        raise Conflict(
            f"#{ticket.number} is {ticket.status.name}. Move it back before its tasks go on.", path=["ticketId"]
        )
    return ticket


def _refused(task: Task, status: TaskStatus) -> InvalidTransition:
    allowed = sorted(after.name for after in MOVES[task.status])
    options = f"can become {' or '.join(allowed)} only" if allowed else "has ended for good"
    return InvalidTransition(
        f"The task is {task.status.name}, so it cannot become {status.name}; it {options}.",
        path=["taskId"],
        details={"allowed": allowed},
    )


async def _named(session: AsyncSession, cycle: DependencyCycle) -> DependencyCycle:
    """The same refusal with the titles that people know."""
    path: list[UUID] = cycle.details["cycle"]
    titles = {task.id: task.title for task in await by_ids(session, path)}
    return DependencyCycle(
        f"These tasks would wait for each other: {' → '.join(titles[one] for one in path)}.",
        path=cycle.path,
        details={"cycle": [ids.encode("task", one) for one in path]},
    )
