"""Attempts: a task and its sandbox end once and together, by whoever comes first."""

import asyncio
import itertools

import pytest
from sqlalchemy import select

from app import attempts, clock, ids, tasks
from app.enums import FailureCode
from app.errors import AppError, InvalidTransition
from app.models import Event, Sandbox, Task, Ticket
from tests import world as w
from tests.app import claimed
from tests.app.browser import sql
from tests.app.claimed import FLEET, begin
from tests.servers import shared_world

DONE = {"success": True, "summary": "Done.", "output": {"answer": 42}, "commit": "c0ffee"}
AGAIN = ("SANDBOX_LOST", "KILLED", "SPAWN_FAILED", "STALLED", "AGENT_ERROR", "OUT_OF_MEMORY")
FOR_GOOD = ("TIMED_OUT", "CHECKS_FAILED", "BUDGET_EXHAUSTED", "CREDENTIAL_REJECTED")


@pytest.fixture(scope="module")
async def world(postgres):
    async with shared_world(postgres, orchestrator_enabled=False) as running:
        yield running


@pytest.fixture(scope="module")
async def ada(world):
    return await world.account("ada")


@pytest.fixture
def row(world):
    """A row by its id, read anew."""

    async def read(kind, node_id):
        key = node_id if kind is Sandbox else ids.decode(node_id)[1]
        async with world.server.db.reading() as session:
            return await session.get_one(kind, key)

    return read


def ways(world, ada, box):
    """The three ways in which an attempt ends."""

    async def finish():
        async with begin(world) as tx:
            await attempts.finish(tx, box.id, DONE)

    async def lose():
        async with begin(world) as tx:
            await attempts.lose(tx, box.id, FailureCode.KILLED, "It was killed.")

    async def cancel():
        async with begin(world) as tx:
            await tasks.cancel(tx, ids.decode(box.task)[1], reason="Enough.")

    return {"finish": finish, "lose": lose, "cancel": cancel}


# What the first end makes of the task; a cancelled one is cancelled whatever its worker says after that.
FIRST = {"finish": ("COMPLETED", "COMPLETED"), "lose": ("PENDING", "FAILED"), "cancel": ("CANCELLED", "CANCELLED")}


@pytest.mark.parametrize("order", list(itertools.permutations(FIRST)), ids="-".join)
async def test_the_first_end_wins(world, ada, box, row, order):
    """In every order. Only a task that waits for its next try can still be cancelled."""
    ending = ways(world, ada, box)
    for way in order:
        try:
            await ending[way]()
        except InvalidTransition:
            assert (way, "finish" in order[: order.index(way)]) == ("cancel", True)
    task, sandbox = await row(Task, box.task), await row(Sandbox, box.id)
    status, ended = FIRST[order[0]]
    if order[0] == "lose":  # the task is queued again, and somebody ends that
        status = "CANCELLED"
    assert (task.status.name, sandbox.status.name) == (status, ended)
    assert (task.result is not None) == (order[0] == "finish")


@pytest.mark.parametrize("turn", range(4))
async def test_the_first_end_wins_at_the_same_time(world, ada, box, row, turn):
    """Whoever is first: task and sandbox agree, and one end is told."""
    every = [*ways(world, ada, box).values()]
    answers = await asyncio.gather(*(way() for way in every[turn % 3 :] + every[: turn % 3]), return_exceptions=True)

    assert all(answer is None or isinstance(answer, AppError) for answer in answers), answers
    task, sandbox = await row(Task, box.task), await row(Sandbox, box.id)
    assert (task.status.name, sandbox.status.name) in {
        ("COMPLETED", "COMPLETED"),
        ("CANCELLED", "FAILED"),
        ("CANCELLED", "CANCELLED"),
    }
    async with world.server.db.reading() as session:
        told = await session.scalars(select(Event.type).where(Event.stream_id == box.id))
    assert [kind.name for kind in told].count("COMPLETED") == 1


async def test_a_result_is_kept(world, box, row):
    """What the worker said of it; the second time changes nothing, whatever is said."""
    async with begin(world) as tx:
        await attempts.finish(tx, box.id, DONE)
    async with begin(world) as tx:
        await attempts.finish(tx, box.id, {"success": False, "summary": "No.", "failure_code": FailureCode.AGENT_ERROR})

    task = await row(Task, box.task)
    assert task.status.name == "COMPLETED"
    assert task.result == {
        "summary": "Done.",
        "output": {"answer": 42},
        "branch": None,
        "commit": "c0ffee",
        "checks": [],
    }


async def test_an_old_attempt_ends_nothing(world, ada, box, row, later):
    """The report of a sandbox that was lost does not touch the attempt that came after it."""
    await box.end()
    await box.write(gone_at=clock.now())
    with later("10 minutes"):
        async with begin(world) as tx:
            await attempts.spawn(tx, ids.decode(box.task)[1], FLEET)
    async with begin(world) as tx:
        assert (await attempts.finish(tx, box.id, DONE)).status.name == "LOST"

    task = await row(Task, box.task)
    assert (task.status.name, task.attempt) == ("ASSIGNED", 2)


@pytest.mark.parametrize("code", [*AGAIN, *FOR_GOOD])
async def test_what_may_pass_is_tried_again(world, box, row, code):
    """And what needs a person waits for one, with its code and its sentence."""
    given = {"success": False, "summary": "It did not go well.", "failure_code": FailureCode[code]}
    async with begin(world) as tx:
        await attempts.finish(tx, box.id, given)

    task, sandbox = await row(Task, box.task), await row(Sandbox, box.id)
    assert (sandbox.status.name, sandbox.failure_code.name) == ("FAILED", code)
    if code in AGAIN:
        assert (task.status.name, task.due_at > sandbox.finished_at) == ("PENDING", True)
    else:
        assert (task.status.name, task.failure_code.name) == ("FAILED", code)
        assert task.failure_message == "It did not go well."


@pytest.mark.parametrize(("code", "end"), [("SANDBOX_LOST", "POISON"), ("AGENT_ERROR", "AGENT_ERROR")])
async def test_the_last_attempt_is_the_last(world, box, row, code, end):
    """Only one that vanished without a word is called poison."""
    await sql(world, "UPDATE tasks SET max_attempts = 1 WHERE id = :id", id=ids.decode(box.task)[1])
    async with begin(world) as tx:
        await attempts.lose(tx, box.id, FailureCode[code], "It is over.")
    assert (await row(Task, box.task)).failure_code.name == end


@pytest.mark.parametrize("attempt", [1, 2, 3, 50])
def test_pauses_grow(attempt):
    """Longer after each attempt, up to a limit, and never the same for two."""
    pauses = {tasks.pause(FailureCode.AGENT_ERROR, attempt).total_seconds() for _ in range(50)}
    longest = min(15 * 2 ** (attempt - 1), tasks.LONGEST_PAUSE_SECONDS)
    assert longest / 2 <= min(pauses) < max(pauses) <= longest


async def test_a_ticket_goes_along(world, ada, apollo, row):
    """READY, IN_PROGRESS with its first task, IN_REVIEW with the last of them completed, and not before."""
    ticket = (await w.ticket(ada, apollo))["id"]
    await ada.do("moveTicket", "ticket { id }", ticketId=ticket, status="READY")
    one = await claimed.box(ada, apollo, ticket=ticket)
    assert (await row(Ticket, ticket)).status.name == "IN_PROGRESS"
    two = await claimed.box(ada, apollo, ticket=ticket)
    for box, status in ((one, "IN_PROGRESS"), (two, "IN_REVIEW")):
        async with begin(world) as tx:
            await attempts.finish(tx, box.id, DONE)
        assert (await row(Ticket, ticket)).status.name == status


async def test_the_last_two_hand_over_together(world, ada, apollo, row):
    """Of two tasks that end at the same time one sees that it was the last."""
    ticket = (await w.ticket(ada, apollo))["id"]
    boxes = [await claimed.box(ada, apollo, ticket=ticket) for _ in range(4)]
    await asyncio.gather(*(ways(world, ada, box)["finish"]() for box in boxes))

    assert (await row(Ticket, ticket)).status.name == "IN_REVIEW"


async def test_a_task_that_failed_holds_its_ticket(world, ada, apollo, row):
    """Not everything is done, so nobody is asked to judge it."""
    ticket = (await w.ticket(ada, apollo))["id"]
    one, two = [await claimed.box(ada, apollo, ticket=ticket) for _ in range(2)]
    async with begin(world) as tx:
        await attempts.finish(tx, one.id, {**DONE, "success": False, "failure_code": FailureCode.CHECKS_FAILED})
    await ways(world, ada, two)["finish"]()

    assert (await row(Ticket, ticket)).status.name == "IN_PROGRESS"


async def test_spawning_twice_is_one_sandbox(world, box):
    """Whoever starts a task that is being worked on gets that sandbox."""
    async with begin(world) as tx:
        assert (await attempts.spawn(tx, ids.decode(box.task)[1], FLEET)).id == box.id


async def test_no_deadlock_between_those_who_change_a_task(world, ada, apollo):
    """Dispatchers, workers, and people who cancel and create in one ticket: none waits for another in a ring."""
    ticket = (await w.ticket(ada, apollo))["id"]
    boxes = [await claimed.box(ada, apollo, ticket=ticket) for _ in range(4)]

    async def dispatch():
        async with begin(world) as tx:
            await attempts.claim(tx, FLEET)

    done = await asyncio.gather(
        *(ways(world, ada, box)["finish"]() for box in boxes[:2]),
        *(ways(world, ada, box)["cancel"]() for box in boxes[2:]),
        *(w.task(ada, ticket) for _ in range(4)),
        *(dispatch() for _ in range(4)),
        ada.do("updateTicket", "ticket { id }", ticketId=ticket, title="Land on Mars"),
        return_exceptions=True,
    )
    assert [error for error in done if isinstance(error, BaseException)] == []
