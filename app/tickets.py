"""A ticket says what is wanted. Only this module changes its status."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Select, false, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from app import branches, clock, graphs, ids, paging, projects, tasks
from app.enums import Priority, TaskStatus, TicketKind, TicketStatus
from app.errors import DependencyCycle, InvalidTransition, NotFound
from app.inputs import Checks, searchable
from app.models import PUNCTUATION, Project, Task, Ticket, TicketBlocker
from app.transactions import Transaction

MOVES: Mapping[TicketStatus, frozenset[TicketStatus]] = {
    TicketStatus.BACKLOG: frozenset({TicketStatus.READY, TicketStatus.IN_PROGRESS, TicketStatus.CANCELLED}),
    TicketStatus.READY: frozenset({TicketStatus.BACKLOG, TicketStatus.IN_PROGRESS, TicketStatus.CANCELLED}),
    TicketStatus.IN_PROGRESS: frozenset(
        {TicketStatus.READY, TicketStatus.IN_REVIEW, TicketStatus.DONE, TicketStatus.CANCELLED}
    ),
    TicketStatus.IN_REVIEW: frozenset({TicketStatus.IN_PROGRESS, TicketStatus.DONE, TicketStatus.CANCELLED}),
    TicketStatus.DONE: frozenset({TicketStatus.IN_PROGRESS}),  # found unfinished after all
    TicketStatus.CANCELLED: frozenset({TicketStatus.BACKLOG}),  # wanted after all
}
CLOSED = frozenset({TicketStatus.DONE, TicketStatus.CANCELLED})
UNIQUE_CHARS = 6
NEWEST_FIRST = paging.Order(Ticket.number, descending=True)
BLOCKERS = graphs.Edges(table=TicketBlocker, waits="ticket_id", needs="blocker_id", nodes=Ticket, argument="blockedBy")
_SPACES = str.maketrans(dict.fromkeys(PUNCTUATION, " "))


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    statuses: tuple[TicketStatus, ...] | None = None
    kinds: tuple[TicketKind, ...] | None = None
    priorities: tuple[Priority, ...] | None = None
    search: str | None = None

    def __post_init__(self) -> None:
        """Refused here, and not where the lists of many projects are read together."""
        if self.search is not None:
            searchable(self.search)


async def create(
    tx: Transaction,
    project_id: UUID,
    *,
    title: str,
    description: str = "",
    kind: TicketKind = TicketKind.FEATURE,
    priority: Priority = Priority.MEDIUM,
    blocked_by: Sequence[UUID] = (),
    start_task: bool = True,
) -> Ticket:
    """With `start_task` a first task is made from it and queued at once, and the ticket is READY."""
    with Checks() as checks:
        title = checks.line(title, "title")
        description = checks.block(description, "description")
    project = await projects.lock(tx.session, project_id)
    ticket = Ticket(
        id=ids.new(),
        project_id=project_id,
        number=await _next_number(tx.session, project_id),
        title=title,
        description=description,
        kind=kind,
        priority=priority,
        status=TicketStatus.READY if start_task else TicketStatus.BACKLOG,
        created_by=tx.principal.id,
    )
    tx.session.add(ticket)
    await tx.session.flush()
    await tx.session.refresh(ticket)
    tx.record("ticket.created", ticket.id, f"created #{ticket.number} {title}", project_id=project_id)
    if blocked_by:
        await graphs.replace(tx.session, BLOCKERS, project_id=project_id, node=ticket.id, needs=blocked_by)
    if start_task:
        await tasks.insert(tx, ticket, project, title=title, description=description)
    return ticket


async def change(tx: Transaction, ticket_id: UUID, given: Mapping[str, Any]) -> Ticket:
    """Set only what was given. A null clears `blocked_reason` and leaves everything else alone."""
    ticket = await _held(tx.session, ticket_id)
    values: dict[str, Any] = {name: given[name] for name in ("kind", "priority") if given.get(name) is not None}
    with Checks() as checks:
        if given.get("title") is not None:
            values["title"] = checks.line(given["title"], "title")
        if given.get("description") is not None:
            values["description"] = checks.block(given["description"], "description")
        if "blocked_reason" in given:
            reason = given["blocked_reason"]
            values["blocked_reason"] = checks.line(reason, "blockedReason") if reason is not None else None
    values = {name: value for name, value in values.items() if getattr(ticket, name) != value}
    if not values:
        return ticket
    what = " and ".join(name.replace("_", " ") for name in sorted(values))
    tx.record("ticket.changed", ticket_id, f"changed {what} of #{ticket.number}", project_id=ticket.project_id)
    return await _update(tx.session, values, Ticket.id == ticket_id)


async def move(tx: Transaction, ticket_id: UUID, status: TicketStatus) -> Ticket:
    """One step of MOVES; staying where it is is no step. Cancelling a ticket cancels what is left of its tasks."""
    ticket = await _held(tx.session, ticket_id)
    if ticket.status is status:
        return ticket
    if status not in MOVES[ticket.status]:
        raise _refused(ticket)
    before = ticket.status
    moved = await _update(tx.session, {"status": status}, Ticket.id == ticket_id, Ticket.status == before)
    tx.record(
        "ticket.moved",
        ticket_id,
        f"moved #{ticket.number} from {before.upper()} to {status.upper()}",
        project_id=ticket.project_id,
    )
    if status is TicketStatus.CANCELLED:
        await tasks.cancel_open(tx, moved, reason=f"#{ticket.number} was cancelled.")
    return moved


async def begin(tx: Transaction, ticket_ids: Collection[UUID]) -> None:
    """Agents work on them now. One that somebody changes in this moment is left to them."""
    untouched = (
        select(Ticket.id)
        .where(Ticket.id.in_(ticket_ids), Ticket.status.in_({TicketStatus.BACKLOG, TicketStatus.READY}))
        .with_for_update(skip_locked=True, key_share=True)
    )
    begun = await _advance(tx.session, TicketStatus.IN_PROGRESS, Ticket.id.in_(untouched))
    for ticket in begun:
        tx.record("ticket.moved", ticket.id, f"began #{ticket.number}", project_id=ticket.project_id)


async def with_branch(session: AsyncSession, ticket_id: UUID, project: Project) -> Ticket:
    """The ticket with a branch of its own, named once, where the project has a repository."""
    ticket = await _lock(session, ticket_id)
    if ticket.branch is not None or project.clone_url is None:
        return ticket
    branch = branches.name(ticket.kind, ticket.number, ticket.title)
    elsewhere = select(Ticket.id).join(Project).where(Ticket.branch == branch, Project.clone_url == project.clone_url)
    if await session.scalar(elsewhere.limit(1)) is not None:  # another project works on the same repository
        branch = f"{branch}-{ticket_id.hex[-UNIQUE_CHARS:]}"
    return await _update(session, {"branch": branch}, Ticket.id == ticket_id)


async def hand_over(tx: Transaction, ticket_id: UUID) -> None:
    """When all its tasks are completed, a ticket in progress waits for a judgement."""
    left = await tx.session.scalar(
        select(Task.id).where(Task.ticket_id == ticket_id, Task.status != TaskStatus.COMPLETED).limit(1)
    )
    if left is not None:
        return
    done = await _advance(
        tx.session, TicketStatus.IN_REVIEW, Ticket.id == ticket_id, Ticket.status == TicketStatus.IN_PROGRESS
    )
    for ticket in done:
        what = f"finished all tasks of #{ticket.number}, which waits for review"
        tx.record("ticket.moved", ticket.id, what, project_id=ticket.project_id)


async def set_blockers(tx: Transaction, ticket_id: UUID, blocked_by: Sequence[UUID]) -> Ticket:
    """Let the ticket wait for exactly these; a cycle is refused with its path."""
    project_id = await project_of(tx.session, ticket_id)
    await projects.lock(tx.session, project_id)
    ticket = await _lock(tx.session, ticket_id)
    try:
        changed = await graphs.replace(tx.session, BLOCKERS, project_id=project_id, node=ticket_id, needs=blocked_by)
    except DependencyCycle as cycle:
        raise await _named(tx.session, cycle) from None
    if changed:
        tx.record("ticket.blockers_set", ticket_id, f"changed what blocks #{ticket.number}", project_id=project_id)
    return ticket


async def project_of(session: AsyncSession, ticket_id: UUID) -> UUID:
    project_id = await session.scalar(select(Ticket.project_id).where(Ticket.id == ticket_id))
    if project_id is None:
        raise NotFound(path=["ticketId"])
    return project_id


async def by_ids(session: AsyncSession, ticket_ids: Sequence[UUID]) -> Sequence[Ticket]:
    found = await session.scalars(select(Ticket).where(Ticket.id.in_(ticket_ids)))
    return found.all()


def of_project(project_id: UUID | ColumnElement[UUID], wanted: Filter) -> Select[Ticket]:
    return select(Ticket).where(Ticket.project_id == project_id, *_conditions(wanted))


async def counts(session: AsyncSession, project_ids: Sequence[UUID], wanted: Filter) -> Mapping[UUID, int]:
    found = await session.execute(
        select(Ticket.project_id, func.count())
        .where(Ticket.project_id.in_(project_ids), *_conditions(wanted))
        .group_by(Ticket.project_id)
    )
    return dict(found.all())


def _conditions(wanted: Filter) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    if wanted.statuses is not None:
        conditions.append(Ticket.status.in_(wanted.statuses))
    if wanted.kinds is not None:
        conditions.append(Ticket.kind.in_(wanted.kinds))
    if wanted.priorities is not None:
        conditions.append(Ticket.priority.in_(wanted.priorities))
    if wanted.search is not None and (text := searchable(wanted.search)):
        conditions.append(_matches(text))
    return conditions


def _matches(text: str) -> ColumnElement[bool]:
    """Every word must be there, the beginning of one is enough; `12` finds that number too, `#12` nothing else."""
    words = text.translate(_SPACES).split()
    query = " & ".join(f"'{word}':*" for word in words)
    found: ColumnElement[bool] = Ticket.search.bool_op("@@")(func.to_tsquery("simple", query))
    number = text.removeprefix("#")
    if not (number.isascii() and number.isdecimal()):
        return found
    numbered = Ticket.number == int(number) if int(number) < 1 << 31 else false()
    return numbered if text.startswith("#") else or_(found, numbered)


async def _next_number(session: AsyncSession, project_id: UUID) -> int:
    number: int | None = await session.scalar(
        update(Project)
        .where(Project.id == project_id)
        .values(last_ticket_number=Project.last_ticket_number + 1)
        .returning(Project.last_ticket_number)
    )
    assert number is not None
    return number


async def _held(session: AsyncSession, ticket_id: UUID) -> Ticket:
    """The ticket's row, locked, in a project that stays active meanwhile."""
    await projects.hold(session, await project_of(session, ticket_id))
    return await _lock(session, ticket_id)


async def _lock(session: AsyncSession, ticket_id: UUID) -> Ticket:
    found = await session.scalars(
        select(Ticket)
        .where(Ticket.id == ticket_id)
        .with_for_update(key_share=True)
        .execution_options(populate_existing=True)
    )
    return found.one()


async def _advance(session: AsyncSession, status: TicketStatus, *which: ColumnElement[bool]) -> Sequence[Ticket]:
    moved = await session.scalars(
        update(Ticket)
        .where(*which)
        .values(status=status, updated_at=clock.now())
        .returning(Ticket)
        .execution_options(populate_existing=True, synchronize_session=False)
    )
    return moved.all()


async def _update(session: AsyncSession, values: Mapping[str, Any], *conditions: ColumnElement[bool]) -> Ticket:
    changed = await session.scalars(
        update(Ticket)
        .where(*conditions)
        .values(**values, updated_at=clock.now())
        .returning(Ticket)
        .execution_options(populate_existing=True)
    )
    return changed.one()


def _refused(ticket: Ticket) -> InvalidTransition:
    allowed = sorted(status.name for status in MOVES[ticket.status])
    return InvalidTransition(
        f"#{ticket.number} is {ticket.status.name} and can move to {' or '.join(allowed)} only.",
        path=["status"],
        details={"allowed": allowed},
    )


async def _named(session: AsyncSession, cycle: DependencyCycle) -> DependencyCycle:
    """The same refusal with the numbers that people know."""
    path: list[UUID] = cycle.details["cycle"]
    numbers = {ticket.id: f"#{ticket.number}" for ticket in await by_ids(session, path)}
    return DependencyCycle(
        f"These tickets would wait for each other: {' → '.join(numbers[one] for one in path)}.",
        path=cycle.path,
        details={"cycle": [ids.encode("ticket", one) for one in path]},
    )
