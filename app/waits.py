"""Why a task is not running now: each reason with what would clear it."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from app import clock, graphs, machines, projects, sandboxes
from app.enums import SandboxStatus, TaskStatus, WaitCode
from app.models import Project, Sandbox, Spending, Task, Ticket, TicketBlocker
from app.tasks import CLOSED_TICKETS, DEPENDENCIES

MICRO = 1_000_000


class Room(machines.Here, Protocol):
    """Where sandboxes run, and how many of them at once."""

    @property
    def machines(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """One thing that holds a task back, with what would clear it."""

    code: WaitCode
    message: str
    blocker: Task | Ticket | Project | Sandbox | None = None
    until: datetime | None = None


async def waiting_for(
    session: AsyncSession, waiting: Sequence[Task], *, orchestrated: bool, room: Room | None = None
) -> Mapping[UUID, list[Reason]]:
    """Every reason that holds each task back now, most lasting first; ten statements for any number.

    A pending task without one is due: its turn comes with the next look, or when those before it have had theirs.
    """
    reasons: dict[UUID, list[Reason]] = {task.id: [] for task in waiting}
    open_tasks = [task for task in waiting if task.status in (TaskStatus.PENDING, TaskStatus.ASSIGNED)]
    if not open_tasks:
        return reasons
    owning = await machines.with_machines_of(session, [task.id for task in open_tasks])
    pending = [task for task in open_tasks if task.status is TaskStatus.PENDING]
    if pending:
        reasons |= await _of_pending(session, pending, orchestrated=orchestrated, room=room)
    for task in open_tasks:
        if task.id in owning:
            reasons[task.id] += _machine_reasons(task, owning[task.id])
    return reasons


async def _of_pending(
    session: AsyncSession, pending: Sequence[Task], *, orchestrated: bool, room: Room | None
) -> dict[UUID, list[Reason]]:
    reasons: dict[UUID, list[Reason]] = {task.id: [] for task in pending}
    owners = {project.id: project for project in await projects.by_ids(session, [task.project_id for task in pending])}
    full = await _full(session, owners)
    crowded = await _crowded(session, room)
    tickets, moment = await _tickets_of(session, pending)
    blockers = await _open_blockers(session, list(tickets))
    needed = await graphs.neighbours(session, DEPENDENCIES, [task.id for task in pending])
    for task in pending:
        found = reasons[task.id]
        if owners[task.project_id].archived_at:
            found.append(_archived_reason(owners[task.project_id]))
        if not orchestrated:
            found.append(_OFF)
        found += _ticket_reasons(tickets[task.ticket_id], blockers[task.ticket_id])
        found += [
            _dependency_reason(other) for other in needed.get(task.id, ()) if other.status is not TaskStatus.COMPLETED
        ]
        if task.due_at > moment:
            found.append(_backoff_reason(task))
        found += full.get(task.project_id, [])
        found += crowded
    return reasons


async def _full(session: AsyncSession, owners: Mapping[UUID, Project]) -> Mapping[UUID, list[Reason]]:
    """Projects whose places are all taken, and those that have spent what they may."""
    live = await sandboxes.counts(session, "project", list(owners), sandboxes.Filter(active=True))
    spent = await session.execute(
        select(Spending.project_id, Spending.cost_micro_usd).where(Spending.project_id.in_(owners))
    )
    costs = dict(spent.all())
    reasons: defaultdict[UUID, list[Reason]] = defaultdict(list)
    for project in owners.values():
        settings = projects.ProjectSettings.stored(project.settings)
        cost = costs.get(project.id, 0) / MICRO
        if settings.budget_usd is not None and cost >= settings.budget_usd:
            reasons[project.id].append(_budget_reason(project, cost, settings.budget_usd))
        if live.get(project.id, 0) >= settings.concurrency:
            reasons[project.id].append(_concurrency_reason(project, settings.concurrency))
    return reasons


async def _crowded(session: AsyncSession, room: Room | None) -> list[Reason]:
    if room is None:
        return []
    there = await machines.count_machines(session, room)
    return [_quota_reason(room)] if there >= room.machines else []


async def _tickets_of(session: AsyncSession, pending: Sequence[Task]) -> tuple[Mapping[UUID, Ticket], datetime]:
    """The tickets of these tasks, and the moment at which they were read."""
    wanted = Ticket.id.in_({task.ticket_id for task in pending})
    rows = (await session.execute(select(Ticket, clock.now()).where(wanted))).all()
    return {ticket.id: ticket for ticket, _ in rows}, rows[0][1]


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


def _budget_reason(project: Project, cost: float, budget: float) -> Reason:
    message = f"{project.name} has spent {cost:.2f} of {budget:.2f} USD. Raise its budgetUsd to go on."
    return Reason(code=WaitCode.BUDGET, message=message, blocker=project)


def _concurrency_reason(project: Project, places: int) -> Reason:
    message = f"All {places} places of {project.name} are taken. It starts when one is free, or raise its concurrency."
    return Reason(code=WaitCode.CONCURRENCY, message=message, blocker=project)


def _quota_reason(room: Room) -> Reason:
    message = f"All {room.machines} sandboxes that {room.provider} may run at once are there. It starts when one goes."
    return Reason(code=WaitCode.PROVIDER_QUOTA, message=message)


def _machine_reasons(task: Task, sandbox: Sandbox) -> list[Reason]:
    """Its next machine, for which there is no room yet; or its last one, which has to be gone first."""
    if task.status is TaskStatus.PENDING:
        what = f"The sandbox of attempt {sandbox.attempt} is {sandbox.status.name} and its machine not gone yet."
        message = f"{what} It starts when that is removed, which happens by itself."
        return [Reason(code=WaitCode.LAST_MACHINE, message=message, blocker=sandbox)]
    if sandbox.status is SandboxStatus.PROVISIONING and sandbox.boot:
        message = f"{sandbox.provider} has no room for its machine: {sandbox.boot[-1]['error']} It is asked again."
        return [Reason(code=WaitCode.PROVIDER_QUOTA, message=message, until=sandbox.launch_at)]
    return []


def _archived_reason(project: Project) -> Reason:
    message = f"The project {project.name} is archived. Restore it to go on."
    return Reason(code=WaitCode.PROJECT_ARCHIVED, message=message, blocker=project)


_OFF = Reason(
    code=WaitCode.ORCHESTRATOR_OFF,
    message="This server hands out no tasks. Start one with ORCHESTRATOR_ENABLED=true.",
)
