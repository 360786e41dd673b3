"""Tickets as clients see them."""

from datetime import datetime

import strawberry

from app import auth, enums, models
from app.enums import Priority, TicketKind, TicketStatus
from resolvers import tasks as resolve_tasks
from resolvers import tickets as resolve
from resolvers import usage as resolve_usage
from schema.fields import Argument, described, field, later, many, mutation, query
from schema.nodes import ID, Node, node, public_id
from schema.paging import connection
from schema.payloads import ERRORS, UserError
from schema.rules import reached
from schema.tasks import TASK_FILTER, Task
from schema.usage import Usage
from schema.users import User

described(TicketKind, "What sort of work a ticket is.")
described(TicketStatus, "Where a ticket stands.")


@node(models.Ticket, "What is wanted. Its tasks are how it gets done.")
class Ticket(Node):
    id = public_id("ticket")
    number: int = strawberry.field(description="1, 2, 3 … within its project.")
    project = field(resolve.project_of, later("Project", "schema.projects"), "The project it belongs to.")
    title: str = strawberry.field(description="What is wanted, in one line.")
    description: str = strawberry.field(description="What is wanted, in full.")
    kind: TicketKind = strawberry.field(description="What sort of work it is.")
    status: TicketStatus = strawberry.field(description="Where it stands.")
    priority: Priority = strawberry.field(description="How soon it is wanted.")
    blocked_by = field(
        resolve.blockers_of, many(later("Ticket", "schema.tickets")), "Tickets that must end before its tasks start."
    )
    blocks = field(resolve.blocked_by_it, many(later("Ticket", "schema.tickets")), "Tickets that wait for this one.")
    blocked_reason: str | None = strawberry.field(description="Why a person holds it back; null when nobody does.")
    branch: str | None = strawberry.field(description="The branch on which its tasks work; null before the first.")
    tasks = connection(resolve_tasks.tasks_of_ticket, Task, "Its tasks, the oldest first.", **TASK_FILTER)
    usage = field(resolve_usage.of_ticket, Usage, "What work on it has cost.")
    created_by = field(resolve.creator_of, User | None, "Who made it.")
    created_at: datetime = strawberry.field(description="When it was made.")
    updated_at: datetime = strawberry.field(description="When it was last changed.")


@strawberry.input(description="Which tickets; what is left out does not narrow.")
class TicketFilter:
    statuses: list[TicketStatus] | None = strawberry.field(default=strawberry.UNSET, description="Any of these.")
    kinds: list[TicketKind] | None = strawberry.field(default=strawberry.UNSET, description="Any of these.")
    priorities: list[Priority] | None = strawberry.field(default=strawberry.UNSET, description="Any of these.")
    search: str | None = strawberry.field(
        default=strawberry.UNSET,
        description=(
            "All of these words, or their beginnings, in title or description; "
            "`12` also finds that number, `#12` it alone."
        ),
    )


TICKET_FILTER = {"filter": Argument(TicketFilter | None, "Which of them.", strawberry.UNSET)}


@strawberry.input(description="With `startTask` (the default) a first task is made from the ticket and queued at once.")
class CreateTicketInput:
    project_id: strawberry.ID = strawberry.field(description="The project's id.")
    title: str = strawberry.field(description="What is wanted, in one line of 200 characters at most.")
    description: str | None = strawberry.field(default="", description="What is wanted, in full.")
    kind: TicketKind | None = strawberry.field(default=TicketKind.FEATURE, description="What sort of work it is.")
    priority: Priority | None = strawberry.field(default=enums.Priority.MEDIUM, description="How soon it is wanted.")
    blocked_by: list[strawberry.ID] | None = strawberry.field(
        default=strawberry.UNSET, description="Tickets that must end before its tasks start."
    )
    start_task: bool | None = strawberry.field(default=True, description="Queue a first task at once.")
    idempotency_key: str | None = strawberry.field(
        default=strawberry.UNSET, description="The same key with the same input makes one ticket."
    )


@strawberry.input(description="What is left out stays as it is.")
class UpdateTicketInput:
    ticket_id: strawberry.ID = strawberry.field(description="The ticket's id.")
    title: str | None = strawberry.field(default=strawberry.UNSET, description="What is wanted, in one line.")
    description: str | None = strawberry.field(default=strawberry.UNSET, description="What is wanted, in full.")
    kind: TicketKind | None = strawberry.field(default=strawberry.UNSET, description="What sort of work it is.")
    priority: Priority | None = strawberry.field(default=strawberry.UNSET, description="How soon it is wanted.")
    blocked_reason: str | None = strawberry.field(
        default=strawberry.UNSET, description="Why it is held back; null lets it go."
    )


@strawberry.input(description="Where to move a ticket.")
class MoveTicketInput:
    ticket_id: strawberry.ID = strawberry.field(description="The ticket's id.")
    status: TicketStatus = strawberry.field(description="Where it shall stand.")


@strawberry.input(description="What a ticket waits for: exactly these.")
class SetTicketBlockersInput:
    ticket_id: strawberry.ID = strawberry.field(description="The ticket's id.")
    blocked_by: list[strawberry.ID] = strawberry.field(description="Tickets that must end first; empty for none.")


@reached("The ticket.")
class TicketPayload:
    ticket: Ticket | None = strawberry.field(default=None, description="The ticket, unless there are errors.")
    errors: list[UserError] = strawberry.field(default_factory=list, description=ERRORS)


@strawberry.type
class TicketQuery:
    ticket = query(resolve.ticket, Ticket | None, "A ticket by its id.", rule=auth.viewer("id"), **ID)


@strawberry.type
class TicketMutation:
    create_ticket = mutation(
        resolve.create,
        TicketPayload,
        "Say what is wanted.",
        takes=CreateTicketInput,
        rule=auth.member("project_id"),
        answers="ticket",
    )
    update_ticket = mutation(
        resolve.change,
        TicketPayload,
        "Change what is given, and nothing else.",
        takes=UpdateTicketInput,
        rule=auth.member("ticket_id"),
        answers="ticket",
    )
    move_ticket = mutation(
        resolve.move,
        TicketPayload,
        "Move it to another status. Cancelling it cancels what is left of its tasks.",
        takes=MoveTicketInput,
        rule=auth.member("ticket_id"),
        answers="ticket",
    )
    set_ticket_blockers = mutation(
        resolve.set_blockers,
        TicketPayload,
        "Let it wait for exactly these tickets.",
        takes=SetTicketBlockersInput,
        rule=auth.member("ticket_id"),
        answers="ticket",
    )
