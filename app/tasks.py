"""A task is one piece of work for one agent. Only this module changes its status."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Select, func, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from app import clock, graphs, ids, paging, projects
from app.enums import FailureCode, Priority, TaskPhase, TaskStatus, TicketStatus, WaitCode
from app.errors import Conflict, DependencyCycle, InvalidTransition, NotFound
from app.inputs import LINE_CHARS, Checks
from app.models import Project, Task, TaskDependency, Ticket, TicketBlocker
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
CLOSED_TICKETS = (TicketStatus.DONE, TicketStatus.CANCELLED)
MOST_ATTEMPTS = 20
OLDEST_FIRST = paging.Order(Task.id)
DEPENDENCIES = graphs.Edges(
    table=TaskDependency, waits="task_id", needs="depends_on_id", nodes=Task, argument="dependsOn"
)

_PARENTS = {"project": Task.project_id, "ticket": Task.ticket_id}


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    statuses: tuple[TaskStatus, ...] | None = None
    phases: tuple[TaskPhase, ...] | None = None
    ticket_id: UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """One thing that holds a task back, with what would clear it."""

    code: WaitCode
    message: str
    blocker: Task | Ticket | Project | None = None
    until: datetime | None = None


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
    )
    if depends_on:
        await graphs.replace(tx.session, DEPENDENCIES, project_id=project.id, node=task.id, needs=depends_on)
    return task


async def insert(tx: Transaction, ticket: Ticket, project: Project, **given: Any) -> Task:
    """A pending task of this ticket, from values that were checked before."""
    given["priority"] = given.get("priority") or ticket.priority
    given["phase"] = given.get("phase") or TaskPhase.IMPLEMENTATION
    given["max_attempts"] = given.get("max_attempts") or projects.ProjectSettings.stored(project.settings).max_attempts
    task = Task(id=ids.new(), project_id=ticket.project_id, ticket_id=ticket.id, **given)
    tx.session.add(task)
    await tx.session.flush()
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
    try:
        changed = await graphs.replace(tx.session, DEPENDENCIES, project_id=project_id, node=task_id, needs=depends_on)
    except DependencyCycle as cycle:
        raise await _named(tx.session, cycle) from None
    if changed:
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


async def retry(tx: Transaction, task_id: UUID) -> Task:
    """FAILED or CANCELLED → PENDING, due now. When its attempts are used up it gets one more."""
    await projects.hold(tx.session, await project_of(tx.session, task_id))
    await _open_ticket(tx.session, await _ticket_of(tx.session, task_id))
    task = await _lock(tx.session, task_id)
    most = max(task.max_attempts, task.attempt + 1)
    values = {
        "max_attempts": most,
        "failure_code": None,
        "failure_message": None,
        "due_at": clock.now(),
        "assigned_at": None,
        "started_at": None,
        "finished_at": None,
    }
    retried = await _move(
        tx.session, task, TaskStatus.PENDING, values, only_from=frozenset({TaskStatus.FAILED, TaskStatus.CANCELLED})
    )
    tx.record("task.retried", task_id, f"queued {task.title} again", project_id=task.project_id)
    return retried


async def waiting_for(
    session: AsyncSession, waiting: Sequence[Task], *, orchestrated: bool
) -> Mapping[UUID, list[Reason]]:
    """Every reason that holds each pending task back now, most lasting first; five statements for any number."""
    pending = [task for task in waiting if task.status is TaskStatus.PENDING]
    reasons: dict[UUID, list[Reason]] = {task.id: [] for task in waiting}
    if not pending:
        return reasons
    archived = await _archived(session, pending)
    tickets = {ticket.id: ticket for ticket in await _tickets_of(session, pending)}
    blockers = await _open_blockers(session, list(tickets))
    needed = await graphs.neighbours(session, DEPENDENCIES, [task.id for task in pending])
    moment = await session.scalar(select(clock.now()))
    for task in pending:
        found = reasons[task.id]
        if project := archived.get(task.project_id):
            found.append(_archived_reason(project))
        if not orchestrated:
            found.append(_OFF)
        found += _ticket_reasons(tickets[task.ticket_id], blockers[task.ticket_id])
        found += [
            _dependency_reason(other) for other in needed.get(task.id, ()) if other.status is not TaskStatus.COMPLETED
        ]
        if moment is not None and task.due_at > moment:
            found.append(_backoff_reason(task))
    return reasons


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


async def _archived(session: AsyncSession, waiting: Sequence[Task]) -> Mapping[UUID, Project]:
    project_ids = {task.project_id for task in waiting}
    return {project.id: project for project in await projects.by_ids(session, list(project_ids)) if project.archived_at}


async def _tickets_of(session: AsyncSession, waiting: Sequence[Task]) -> Sequence[Ticket]:
    found = await session.scalars(select(Ticket).where(Ticket.id.in_({task.ticket_id for task in waiting})))
    return found.all()


async def _open_blockers(session: AsyncSession, ticket_ids: Sequence[UUID]) -> Mapping[UUID, list[Ticket]]:
    found = await session.execute(
        select(TicketBlocker.ticket_id, Ticket)
        .join(Ticket, Ticket.id == TicketBlocker.blocker_id)
        .where(TicketBlocker.ticket_id.in_(ticket_ids), Ticket.status.not_in(CLOSED_TICKETS))
        .order_by(Ticket.number)
    )
    grouped = defaultdict(list)
    for ticket_id, blocker in found:
        grouped[ticket_id].append(blocker)
    return grouped


def _ticket_reasons(ticket: Ticket, blockers: Sequence[Ticket]) -> list[Reason]:
    if ticket.status in CLOSED_TICKETS:
        message = f"#{ticket.number} is {ticket.status.name}. Move it back to go on."
        return [Reason(code=WaitCode.TICKET_BLOCKED, message=message, blocker=ticket)]
    reasons = [
        Reason(
            code=WaitCode.TICKET_BLOCKED,
            message=(
                f"#{ticket.number} waits for #{blocker.number} {blocker.title}. Finish that, or take it off blockedBy."
            ),
            blocker=blocker,
        )
        for blocker in blockers
    ]
    if ticket.blocked_reason:
        message = f"#{ticket.number} is blocked: {ticket.blocked_reason}. Clear its blockedReason to go on."
        reasons.append(Reason(code=WaitCode.TICKET_BLOCKED, message=message, blocker=ticket))
    return reasons


def _dependency_reason(needed: Task) -> Reason:
    helps = "Retry that" if needed.status in (TaskStatus.FAILED, TaskStatus.CANCELLED) else "Wait for it"
    return Reason(
        code=WaitCode.DEPENDENCY,
        message=f"It depends on {needed.title}, which is {needed.status.name}. {helps}, or take it off dependsOn.",
        blocker=needed,
    )


def _backoff_reason(task: Task) -> Reason:
    message = "The last attempt failed; the next one starts by itself when the pause is over."
    return Reason(code=WaitCode.BACKOFF, message=message, until=task.due_at)


def _archived_reason(project: Project) -> Reason:
    message = f"The project {project.name} is archived. Restore it to go on."
    return Reason(code=WaitCode.PROJECT_ARCHIVED, message=message, blocker=project)


_OFF = Reason(
    code=WaitCode.ORCHESTRATOR_OFF,
    message="This server hands out no tasks. Start one with ORCHESTRATOR_ENABLED=true.",
)


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
