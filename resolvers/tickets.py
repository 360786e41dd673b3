"""Answers about tickets."""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from app import ids, paging, tickets
from app.models import Project, Ticket, User
from app.transactions import Transaction
from resolvers.context import Context
from resolvers.loaders import TicketList

Given = dict[str, Any]


async def ticket(context: Context, root: Any, id: str) -> Ticket:
    found: Ticket = await context.loaders.tickets.load(_key(id, "id"))
    return found


async def tickets_of_project(
    context: Context,
    project: Project,
    filter: Mapping[str, Any] | None = None,
    **page: Any,
) -> paging.Page[Ticket]:
    wanted = tickets.Filter(**{name: _frozen(value) for name, value in (filter or {}).items()})
    found: paging.Page[Ticket] = await context.loaders.ticket_pages.load(
        TicketList(project.id, wanted, paging.Arguments(**page))
    )
    return found


async def project_of(context: Context, row: Any) -> Project:
    project: Project = await context.loaders.projects.load(row.project_id)
    return project


async def blockers_of(context: Context, ticket: Ticket) -> Sequence[Ticket]:
    found: Sequence[Ticket] = await context.loaders.blockers.load(ticket.id)
    return found


async def blocked_by_it(context: Context, ticket: Ticket) -> Sequence[Ticket]:
    found: Sequence[Ticket] = await context.loaders.blocked.load(ticket.id)
    return found


async def creator_of(context: Context, ticket: Ticket) -> User | None:
    if ticket.created_by is None:
        return None
    user: User = await context.loaders.users.load(ticket.created_by)
    return user


async def create(tx: Transaction, given: Given) -> Ticket:
    optional = {name: given[name] for name in ("kind", "priority", "start_task") if given.get(name) is not None}
    return await tickets.create(
        tx,
        ids.require(given["project_id"], "project", "projectId"),
        title=given["title"],
        description=given.get("description") or "",
        blocked_by=_blockers(given),
        **optional,
    )


async def change(tx: Transaction, given: Given) -> Ticket:
    return await tickets.change(tx, _key(given.pop("ticket_id")), given)


async def move(tx: Transaction, given: Given) -> Ticket:
    return await tickets.move(tx, _key(given["ticket_id"]), given["status"])


async def set_blockers(tx: Transaction, given: Given) -> Ticket:
    return await tickets.set_blockers(tx, _key(given["ticket_id"]), _blockers(given))


def _blockers(given: Given) -> list[UUID]:
    return [
        ids.require(one, "ticket", "blockedBy", str(place)) for place, one in enumerate(given.get("blocked_by") or ())
    ]


def _key(public_id: str, name: str = "ticketId") -> UUID:
    return ids.require(public_id, "ticket", name)


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
