"""Sending a request again: the same key with the same input is done once."""

import asyncio

from sqlalchemy import func, select

from app.models import Activity, AuditEntry, Ticket
from tests import world as w
from tests.schema import boxes


async def rows(world):
    """How many tickets, entries of the feed and audit rows there are."""
    async with world.server.db.reading() as session:
        return [
            await session.scalar(select(func.count()).select_from(model)) for model in (Ticket, Activity, AuditEntry)
        ]


async def test_the_same_request_is_done_once(world, ada, apollo):
    """It is answered with the same object, and leaves no second row anywhere."""
    first = await w.ticket(ada, apollo, idempotencyKey="moon")
    before = await rows(world)

    again = await w.ticket(ada, apollo, idempotencyKey="moon")

    assert again == first
    assert await rows(world) == before


async def test_the_object_is_answered_as_it_is_now(ada, apollo):
    """What happened to it since then shows."""
    first = await w.ticket(ada, apollo, idempotencyKey="moon")
    await ada.do("moveTicket", "ticket { id }", ticketId=first["id"], status="CANCELLED")

    assert (await w.ticket(ada, apollo, idempotencyKey="moon"))["status"] == "CANCELLED"


async def test_another_input_with_the_key_is_refused(world, ada, apollo):
    """Also when it differs in what has a default only; nothing is made."""
    await w.ticket(ada, apollo, idempotencyKey="moon")
    before = await rows(world)

    for other in ({"title": "Land on Mars"}, {"kind": "BUG"}, {"description": "Softly."}):
        given = {
            "projectId": apollo,
            "title": "Land on the moon",
            "startTask": False,
            "idempotencyKey": "moon",
            **other,
        }
        payload = await ada.change("createTicket", "ticket { id }", **given)
        assert payload["ticket"] is None
        assert w.refusals(payload) == [("IDEMPOTENCY_MISMATCH", ["idempotencyKey"])]
    assert await rows(world) == before


async def test_ten_at_once_make_one(world, ada, apollo):
    """Whoever comes second waits for the first and answers with what it made."""
    before = await rows(world)

    made = await asyncio.gather(*(w.ticket(ada, apollo, idempotencyKey="moon") for _ in range(10)))

    assert {ticket["id"] for ticket in made} == {made[0]["id"]}
    assert await rows(world) == [count + 1 for count in before]


async def test_a_key_belongs_to_one_account_and_one_mutation(ada, bob, apollo):
    """Others may use the same word for something else."""
    await w.share(ada, apollo, bob)
    first = await w.ticket(ada, apollo, idempotencyKey="moon")
    second = await w.ticket(bob, apollo, idempotencyKey="moon")
    task = await w.task(ada, first["id"], idempotencyKey="moon")

    assert [first["number"], second["number"], task["status"]] == [1, 2, "PENDING"]


async def test_a_refused_request_does_not_use_its_key_up(ada, apollo):
    """Mended, it passes with the same key."""
    given = {"projectId": apollo, "idempotencyKey": "moon"}
    for wrong in ({"title": ""}, {"title": "Land", "blockedBy": ["nothing"]}):
        assert (await ada.change("createTicket", "ticket { id }", **given, **wrong))["errors"]

    assert (await w.ticket(ada, apollo, idempotencyKey="moon"))["number"] == 1


async def test_every_mutation_that_takes_a_key_heeds_it(ada, world, apollo):
    """Projects, tasks, retries, sandboxes, messages and users, too."""
    grace = await world.account("grace", admin=True)
    ticket = (await w.ticket(ada, apollo))["id"]
    task = (await w.task(ada, ticket))["id"]
    await ada.do("cancelTask", "task { id }", taskId=task)
    box = await boxes.spawn(ada, apollo)
    for account, mutation, fields, given in (
        (ada, "createProject", "project { id }", {"name": "Gemini"}),
        (ada, "createTask", "task { id }", {"ticketId": ticket, "title": "Build"}),
        (ada, "retryTask", "task { id }", {"taskId": task}),
        (ada, "spawnSandbox", "sandbox { id }", {"taskId": task}),
        (ada, "injectMessage", "message { id }", {"sandboxId": box.id, "body": "Go"}),
        (grace, "createUser", "user { id }", {"email": "carol@example.com", "name": "Carol"}),
    ):
        made = [await account.do(mutation, fields, **given, idempotencyKey="again") for _ in range(2)]
        assert made[0] == made[1], mutation


async def test_a_repeated_account_shows_no_second_link(world):
    """The link is shown with the first answer alone."""
    grace = await world.account("grace", admin=True)
    given = {"email": "carol@example.com", "name": "Carol", "idempotencyKey": "carol"}
    made = [await grace.change("createUser", "user { id } signInUrl", **given) for _ in range(2)]

    assert made[0]["signInUrl"].startswith(world.url)
    assert made[1] == {**made[0], "signInUrl": None}


async def test_a_key_is_a_word(ada, apollo):
    """Not empty, not endless, and storable; a key of null is no key."""
    given = {"projectId": apollo, "title": "Land"}
    for key in ("", "x" * 201, "a\0b"):
        payload = await ada.change("createTicket", "ticket { id }", **given, idempotencyKey=key)
        assert w.refusals(payload) == [("INVALID_INPUT", ["idempotencyKey"])]
    made = [await w.ticket(ada, apollo, idempotencyKey=None) for _ in range(2)]
    assert [ticket["number"] for ticket in made] == [1, 2]


async def test_a_key_opens_nothing_that_was_taken_away(ada, bob, apollo):
    """A member who was removed is answered as a stranger is, with an old key as well."""
    await w.share(ada, apollo, bob)
    await w.ticket(bob, apollo, idempotencyKey="moon")
    await ada.do("removeMember", "project { id }", projectId=apollo, userId=bob.id)

    given = {"projectId": apollo, "title": "Land on the moon", "startTask": False, "idempotencyKey": "moon"}
    assert w.refusals(await bob.change("createTicket", "ticket { id }", **given)) == [("NOT_FOUND", ["projectId"])]


async def test_a_key_of_a_project_opens_nothing_that_was_taken_away(ada, bob):
    """Who made a project and was removed from it cannot read it by asking to make it again."""
    made = await w.project(ada, idempotencyKey="moon")
    await w.share(ada, made, bob, role="OWNER")
    await bob.do("removeMember", "project { id }", projectId=made, userId=ada.id)

    again = await ada.change("createProject", "project { id name }", name="Apollo", idempotencyKey="moon")
    assert (again["project"], w.refusals(again)) == (None, [("NOT_FOUND", None)])
