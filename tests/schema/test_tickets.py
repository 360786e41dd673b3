"""Tickets through the front door."""

import asyncio
import itertools

import pytest

from app.enums import TicketStatus
from app.tickets import MOVES
from tests import world as w

TICKET = "query($id: ID!) { ticket(id: $id) { number title description status blockedReason updatedAt } }"
FEED = "query($id: ID!) { project(id: $id) { activity(last: 100) { nodes { seq verb summary } } } }"
PATHS = {  # how a ticket gets there from BACKLOG
    "BACKLOG": [],
    "READY": ["READY"],
    "IN_PROGRESS": ["IN_PROGRESS"],
    "IN_REVIEW": ["IN_PROGRESS", "IN_REVIEW"],
    "DONE": ["IN_PROGRESS", "DONE"],
    "CANCELLED": ["CANCELLED"],
}


async def move(account, ticket_id, status):
    return await account.change("moveTicket", "ticket { status }", ticketId=ticket_id, status=status)


async def at(account, project_id, status):
    """A ticket that was moved to this status, step by step."""
    ticket = await w.ticket(account, project_id)
    for step in PATHS[status]:
        assert (await move(account, ticket["id"], step))["errors"] == []
    return ticket["id"]


async def feed(account, project_id):
    return (await account(FEED, id=project_id)).data["project"]["activity"]["nodes"]


async def read(account, ticket_id):
    return (await account(TICKET, id=ticket_id)).data["ticket"]


async def test_tickets_are_numbered_in_their_project(ada, apollo):
    """The first is 1, the next 2; another project counts for itself."""
    first, second = [await w.ticket(ada, apollo) for _ in range(2)]
    elsewhere = await w.ticket(ada, await w.project(ada, name="Gemini"))

    assert (first["number"], second["number"], elsewhere["number"]) == (1, 2, 1)


async def test_tickets_made_at_once_are_numbered_without_a_hole(ada, apollo):
    """Thirty at the same time get 1 to 30, whatever is refused between them."""
    wrong = [ada.change("createTicket", "ticket { id }", projectId=apollo, title="", blockedBy=["x"]) for _ in range(5)]
    made = await asyncio.gather(*(w.ticket(ada, apollo) for _ in range(30)), *wrong)

    assert sorted(ticket["number"] for ticket in made[:30]) == list(range(1, 31))


async def test_a_ticket_starts_with_a_task_unless_told_otherwise(ada, apollo):
    """`startTask` is the default: the first task is made from the ticket and queued at once."""
    made = await ada.do(
        "createTicket", "ticket { status tasks { nodes { title status } } }", projectId=apollo, title="Land"
    )

    assert made == {"status": "READY", "tasks": {"nodes": [{"title": "Land", "status": "PENDING"}]}}


async def test_a_ticket_is_what_was_said(ada, apollo):
    """Every field of the input comes back, and what was left out has its default."""
    fields = "ticket { title description kind priority status createdBy { id } blockedBy { number } }"
    blocker = await w.ticket(ada, apollo)
    said = {"title": " Land ", "description": "Softly.\n", "kind": "BUG", "priority": "HIGH", "startTask": False}

    made = await ada.do("createTicket", fields, projectId=apollo, blockedBy=[blocker["id"]], **said)
    plain = await ada.do("createTicket", fields, projectId=apollo, title="Land", kind=None, description=None)

    assert made == {
        **{name: value for name, value in said.items() if name != "startTask"},
        "title": "Land",
        "status": "BACKLOG",
        "createdBy": {"id": ada.id},
        "blockedBy": [{"number": 1}],
    }
    assert (plain["description"], plain["kind"], plain["priority"]) == ("", "FEATURE", "MEDIUM")


@pytest.mark.parametrize("before", [status.name for status in TicketStatus])
async def test_every_move_is_allowed_or_refused_as_the_table_says(before, ada, apollo):
    """A refused move names the allowed ones and changes nothing; staying is no move and leaves no trace."""
    for after in TicketStatus:
        ticket = await at(ada, apollo, before)
        known = len(await feed(ada, apollo))
        payload = await move(ada, ticket, after.name)
        new = (await feed(ada, apollo))[known:]

        if after.name == before:
            assert (payload["ticket"]["status"], payload["errors"], new) == (before, [], [])
        elif after in MOVES[TicketStatus[before]]:
            assert (payload["ticket"]["status"], payload["errors"]) == (after.name, [])
            assert [entry["verb"] for entry in new] == ["ticket.moved"]
        else:
            [error] = payload["errors"]
            assert (error["code"], error["path"]) == ("INVALID_TRANSITION", ["status"])
            assert error["allowed"] == sorted(status.name for status in MOVES[TicketStatus[before]])
            assert (payload["ticket"], new, (await read(ada, ticket))["status"]) == (None, [], before)


async def test_two_moves_at_once_follow_each_other(ada, apollo):
    """READY to IN_PROGRESS and to CANCELLED: what was answered, what is told and what is stored agree."""
    for _ in range(10):
        ticket = await at(ada, apollo, "READY")
        known = len(await feed(ada, apollo))

        wanted = ["IN_PROGRESS", "CANCELLED"]
        payloads = await asyncio.gather(*(move(ada, ticket, status) for status in wanted))

        done = [status for status, payload in zip(wanted, payloads, strict=True) if not payload["errors"]]
        new = [entry["summary"].split()[-1] for entry in (await feed(ada, apollo))[known:]]
        assert sorted(new) == sorted(done)
        assert (await read(ada, ticket))["status"] == new[-1] == "CANCELLED"


async def test_cancelling_a_ticket_cancels_what_is_left_of_its_tasks(ada, apollo):
    """Each says why; one that was cancelled before keeps its own reason."""
    ticket = (await w.ticket(ada, apollo))["id"]
    early, late = [(await w.task(ada, ticket))["id"] for _ in range(2)]
    await ada.do("cancelTask", "task { id }", taskId=early, reason="Too dear.")

    fields = "ticket { tasks { nodes { id status failure { code message retryable } } } }"
    cancelled = await ada.do("moveTicket", fields, ticketId=ticket, status="CANCELLED")

    ended = {"code": "CANCELLED", "retryable": True}
    assert cancelled["tasks"]["nodes"] == [
        {"id": early, "status": "CANCELLED", "failure": {**ended, "message": "Too dear."}},
        {"id": late, "status": "CANCELLED", "failure": {**ended, "message": "#1 was cancelled."}},
    ]


async def test_no_task_outlives_its_cancelled_ticket(ada, apollo):
    """Tasks that are made or retried while the ticket is cancelled are cancelled with it, or refused."""
    for _ in range(10):
        ticket = (await w.ticket(ada, apollo))["id"]
        old = (await w.task(ada, ticket))["id"]
        await ada.do("cancelTask", "task { id }", taskId=old)

        await asyncio.gather(
            *(ada.change("createTask", "task { id }", ticketId=ticket, title="Build") for _ in range(3)),
            move(ada, ticket, "CANCELLED"),
            ada.change("retryTask", "task { id }", taskId=old),
        )

        answer = await ada("query($id: ID!) { ticket(id: $id) { status tasks { nodes { status } } } }", id=ticket)
        assert answer.data["ticket"]["status"] == "CANCELLED"
        assert {task["status"] for task in answer.data["ticket"]["tasks"]["nodes"]} == {"CANCELLED"}


async def test_two_people_who_change_different_things_both_get_their_way(ada, bob, apollo):
    """Title and description at the same time; each change is told once."""
    await w.share(ada, apollo, bob)
    ticket = (await w.ticket(ada, apollo))["id"]
    known = len(await feed(ada, apollo))

    await asyncio.gather(
        ada.do("updateTicket", "ticket { id }", ticketId=ticket, title="Land gently"),
        bob.do("updateTicket", "ticket { id }", ticketId=ticket, description="On the near side."),
    )

    now = await read(ada, ticket)
    assert (now["title"], now["description"]) == ("Land gently", "On the near side.")
    assert len(await feed(ada, apollo)) == known + 2


async def test_null_clears_the_reason_and_leaves_everything_else(ada, apollo):
    """What cannot be empty stays as it is."""
    ticket = (await w.ticket(ada, apollo, description="Softly."))["id"]
    await ada.do("updateTicket", "ticket { id }", ticketId=ticket, blockedReason="No fuel")
    assert (await read(ada, ticket))["blockedReason"] == "No fuel"

    nothing = dict.fromkeys(("title", "description", "kind", "priority", "blockedReason"))
    await ada.do("updateTicket", "ticket { id }", ticketId=ticket, **nothing)

    now = await read(ada, ticket)
    assert (now["title"], now["description"], now["blockedReason"]) == ("Land on the moon", "Softly.", None)


async def test_a_change_shows_when_it_was(ada, apollo):
    """`updatedAt` moves with every change and stays where nothing was changed."""
    ticket = (await w.ticket(ada, apollo))["id"]
    moments = [(await read(ada, ticket))["updatedAt"]]
    for title in ("Land gently", "Land gently", "Land hard"):
        await ada.do("updateTicket", "ticket { id }", ticketId=ticket, title=title)
        moments.append((await read(ada, ticket))["updatedAt"])

    assert [later > earlier for earlier, later in itertools.pairwise(moments)] == [True, False, True]
