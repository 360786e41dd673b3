"""Tickets through the front door."""

from tests import world as w

TICKET = "query($id: ID!) { ticket(id: $id) { number title status blockedBy { id } blocks { id } } }"


async def test_tickets_are_numbered_in_their_project(ada, apollo):
    """The first is 1, the next 2; another project counts for itself."""
    first, second = [await w.ticket(ada, apollo) for _ in range(2)]
    elsewhere = await w.ticket(ada, await w.project(ada, name="Gemini"))

    assert (first["number"], second["number"], elsewhere["number"]) == (1, 2, 1)


async def test_a_ticket_starts_with_a_task_unless_told_otherwise(ada, apollo):
    """`startTask` is the default: the first task is made from the ticket and queued at once."""
    made = await ada.do(
        "createTicket", "ticket { status tasks { nodes { title status } } }", projectId=apollo, title="Land"
    )

    assert made == {"status": "READY", "tasks": {"nodes": [{"title": "Land", "status": "PENDING"}]}}


async def test_a_refused_move_names_the_allowed_ones(ada, apollo):
    """DONE is not reached from BACKLOG; the answer says what is, and nothing moved."""
    ticket = await w.ticket(ada, apollo)

    payload = await ada.change("moveTicket", "ticket { id }", ticketId=ticket["id"], status="DONE")

    assert payload["ticket"] is None
    assert [(error["code"], error["allowed"]) for error in payload["errors"]] == [
        ("INVALID_TRANSITION", ["CANCELLED", "IN_PROGRESS", "READY"])
    ]
    assert (await ada(TICKET, id=ticket["id"])).data["ticket"]["status"] == "BACKLOG"
