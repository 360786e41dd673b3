"""Why a task is not running now: each reason with what would clear it."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from app import clock, graphs, projects, sandboxes
from app.enums import TaskStatus, WaitCode
from app.models import Project, Spending, Task, Ticket, TicketBlocker
from app.tasks import CLOSED_TICKETS, DEPENDENCIES

MICRO = 1_000_000


class Room(Protocol):
    """Where sandboxes run, and how many of them at once."""

    @property
    def provider(self) -> str: ...
    @property
    def machines(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """One thing that holds a task back, with what would clear it."""

    code: WaitCode
    message: str
    blocker: Task | Ticket | Project | None = None
    until: datetime | None = None


async def waiting_for(
    session: AsyncSession, waiting: Sequence[Task], *, orchestrated: bool, room: Room | None = None
) -> Mapping[UUID, list[Reason]]:
    """Every reason that holds each pending task back now, most lasting first; nine statements for any number."""
    pending = [task for task in waiting if task.status is TaskStatus.PENDING]
    reasons: dict[UUID, list[Reason]] = {task.id: [] for task in waiting}
    if not pending:
        return reasons
    owners = {project.id: project for project in await projects.by_ids(session, [task.project_id for task in pending])}
    full = await _full(session, owners)
    crowded = await _crowded(session, room)
    tickets = {ticket.id: ticket for ticket in await _tickets_of(session, pending)}
    blockers = await _open_blockers(session, list(tickets))
    needed = await graphs.neighbours(session, DEPENDENCIES, [task.id for task in pending])
    moment = await session.scalar(select(clock.now()))
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
        if moment is not None and task.due_at > moment:
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
    there = await sandboxes.count_machines(session, provider=room.provider)
    return [_quota_reason(room)] if there >= room.machines else []


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


def _budget_reason(project: Project, cost: float, budget: float) -> Reason:
    message = f"{project.name} has spent {cost:.2f} of {budget:.2f} USD. Raise its budgetUsd to go on."
    return Reason(code=WaitCode.BUDGET, message=message, blocker=project)


def _concurrency_reason(project: Project, places: int) -> Reason:
    message = f"All {places} places of {project.name} are taken. It starts when one is free, or raise its concurrency."
    return Reason(code=WaitCode.CONCURRENCY, message=message, blocker=project)


def _quota_reason(room: Room) -> Reason:
    message = f"All {room.machines} sandboxes that {room.provider} may run at once are there. It starts when one goes."
    return Reason(code=WaitCode.PROVIDER_QUOTA, message=message)


def _archived_reason(project: Project) -> Reason:
    message = f"The project {project.name} is archived. Restore it to go on."
    return Reason(code=WaitCode.PROJECT_ARCHIVED, message=message, blocker=project)


_OFF = Reason(
    code=WaitCode.ORCHESTRATOR_OFF,
    message="This server hands out no tasks. Start one with ORCHESTRATOR_ENABLED=true.",
)
