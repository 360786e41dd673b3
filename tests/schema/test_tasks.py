"""Tasks through the front door. What only an orchestrator does to them is done here by app/tasks.py's own hand."""

import asyncio
from dataclasses import replace

import pytest
from sqlalchemy import text

from app import health, ids
from app.enums import TaskStatus
from app.tasks import MOVES
from tests import world as w

TASK = "query($id: ID!) { task(id: $id) { status attempt maxAttempts finishedAt failure { code message retryable } } }"
WAITING = "query($id: ID!) { task(id: $id) { waitingFor { code message until blocker { __typename id } } } }"
STATES = {  # what the orchestrator will have written; until then SQL speaks for it
    "PENDING": "status = 'pending'",
    "ASSIGNED": "status = 'assigned', attempt = 1, assigned_at = now()",
    "RUNNING": "status = 'running', attempt = 1, assigned_at = now(), started_at = now()",
    "COMPLETED": "status = 'completed', attempt = 1, finished_at = now(), result = '{}'",
    "FAILED": "status = 'failed', attempt = 3, finished_at = now(), failure_code = 'killed', failure_message = 'No.'",
    "CANCELLED": "status = 'cancelled', finished_at = now(), failure_code = 'cancelled', failure_message = 'No.'",
}


@pytest.fixture
async def ticket(ada, apollo):
    return (await w.ticket(ada, apollo))["id"]


async def put(world, task_id, columns):
    async with world.server.db.writing() as session:
        await session.execute(text(f"UPDATE tasks SET {columns} WHERE id = :id"), {"id": ids.decode(task_id)[1]})


async def at(world, account, ticket_id, status):
    """A task in this status."""
    task = (await w.task(account, ticket_id))["id"]
    await put(world, task, STATES[status])
    return task


async def read(account, task_id):
    return (await account(TASK, id=task_id)).data["task"]


async def waits(account, task_id):
    answer = await account(WAITING, id=task_id)
    assert answer.errors == []
    return answer.data["task"]["waitingFor"]


async def seen(account, project_id):
    answer = await account("query($id: ID!) { project(id: $id) { activity { totalCount } } }", id=project_id)
    return answer.data["project"]["activity"]["totalCount"]


@pytest.mark.parametrize("status", [status.name for status in TaskStatus])
async def test_a_task_can_be_cancelled_until_it_has_ended(status, world, ada, apollo, ticket):
    """It says by whom; one that has ended stays as it ended, and cancelling twice is no second change."""
    task = await at(world, ada, ticket, status)
    before, known = await read(ada, task), await seen(ada, apollo)

    payload = await ada.change("cancelTask", "task { status }", taskId=task)

    now = await read(ada, task)
    if status == "CANCELLED":
        assert (payload["errors"], now, await seen(ada, apollo)) == ([], before, known)
    elif TaskStatus.CANCELLED in MOVES[TaskStatus[status]]:
        assert now["failure"] == {"code": "CANCELLED", "message": "Cancelled by Ada.", "retryable": True}
        assert (now["status"], now["finishedAt"] is None, await seen(ada, apollo)) == ("CANCELLED", False, known + 1)
    else:
        assert w.refusals(payload) == [("INVALID_TRANSITION", ["taskId"])]
        assert (payload["task"], now, await seen(ada, apollo)) == (None, before, known)


@pytest.mark.parametrize("status", [status.name for status in TaskStatus])
async def test_a_task_is_retried_when_it_ended_without_a_result(status, world, ada, apollo, ticket):
    """It waits again, with one attempt more when all were used up; refused otherwise, naming what is allowed."""
    task = await at(world, ada, ticket, status)
    before, known = await read(ada, task), await seen(ada, apollo)

    payload = await ada.change("retryTask", "task { status }", taskId=task)

    now = await read(ada, task)
    if status in ("FAILED", "CANCELLED"):
        assert (payload["errors"], now["status"], now["failure"], now["finishedAt"]) == ([], "PENDING", None, None)
        assert now["maxAttempts"] == (4 if status == "FAILED" else 3)
        assert await seen(ada, apollo) == known + 1
    else:
        [error] = payload["errors"]
        assert error["code"] == "INVALID_TRANSITION"
        assert error["allowed"] == sorted(after.name for after in MOVES[TaskStatus[status]])
        assert (now, await seen(ada, apollo)) == (before, known)


async def test_of_two_retries_at_once_one_counts(world, ada, ticket):
    """The other finds it pending already."""
    task = await at(world, ada, ticket, "FAILED")

    payloads = await asyncio.gather(*(ada.change("retryTask", "task { id }", taskId=task) for _ in range(2)))

    assert sorted(code for payload in payloads for code, _ in w.refusals(payload)) == ["INVALID_TRANSITION"]


@pytest.mark.parametrize("status", ["CANCELLED", "DONE"])
async def test_a_closed_ticket_gets_no_work(status, world, ada, ticket):
    """Neither a new task nor a retry; moved back, it does."""
    task = await at(world, ada, ticket, "FAILED")
    for step in ("IN_PROGRESS", status):
        await ada.do("moveTicket", "ticket { id }", ticketId=ticket, status=step)

    for mutation, given in (("createTask", {"ticketId": ticket, "title": "Go"}), ("retryTask", {"taskId": task})):
        payload = await ada.change(mutation, "task { id }", **given)
        assert w.refusals(payload) == [("CONFLICT", ["ticketId"])]
    await ada.do(
        "moveTicket", "ticket { id }", ticketId=ticket, status="BACKLOG" if status == "CANCELLED" else "IN_PROGRESS"
    )
    assert (await ada.do("retryTask", "task { status }", taskId=task)) == {"status": "PENDING"}


async def test_a_task_takes_what_it_was_not_told_from_its_ticket_and_project(ada):
    """Priority from the ticket, attempts from the settings; what is said wins."""
    project = await w.project(ada, settings={"maxAttempts": 7})
    ticket = (await w.ticket(ada, project, priority="CRITICAL"))["id"]
    fields = "task { priority phase maxAttempts attempt status description }"

    plain = await ada.do("createTask", fields, ticketId=ticket, title="Go")
    said = {"priority": "LOW", "phase": "REVIEW", "maxAttempts": 1, "description": "Softly."}
    told = await ada.do("createTask", fields, ticketId=ticket, title="Go", **said)

    common = {"attempt": 0, "status": "PENDING"}
    assert plain == {**common, "priority": "CRITICAL", "phase": "IMPLEMENTATION", "maxAttempts": 7, "description": ""}
    assert told == {**common, **said}


async def test_a_task_that_nothing_holds_back_waits_for_nothing(ada, ticket):
    assert await waits(ada, (await w.task(ada, ticket))["id"]) == []


async def test_a_task_waits_for_what_it_depends_on(world, ada, ticket):
    """The blocker is the other task, and the message says what would help; completed, it is gone."""
    needed = await at(world, ada, ticket, "RUNNING")
    task = (await w.task(ada, ticket, dependsOn=[needed]))["id"]

    [reason] = await waits(ada, task)
    assert (reason["code"], reason["blocker"]) == ("DEPENDENCY", {"__typename": "Task", "id": needed})
    assert reason["message"] == (
        "It depends on Build the lander, which is RUNNING. Wait for it, or take it off dependsOn."
    )
    await put(world, needed, STATES["FAILED"])
    assert "Retry that" in (await waits(ada, task))[0]["message"]
    await put(world, needed, "status = 'completed', failure_code = NULL, finished_at = now(), result = '{}'")
    assert await waits(ada, task) == []


async def test_a_task_waits_while_its_ticket_is_blocked(ada, apollo, ticket):
    """By another ticket until that is closed, and by a person until the reason is cleared."""
    task = (await w.task(ada, ticket))["id"]
    blocker = (await w.ticket(ada, apollo, title="Fuel"))["id"]
    await ada.do("setTicketBlockers", "ticket { id }", ticketId=ticket, blockedBy=[blocker])
    await ada.do("updateTicket", "ticket { id }", ticketId=ticket, blockedReason="No crew")

    by_ticket, by_person = await waits(ada, task)
    assert (by_ticket["code"], by_ticket["blocker"]["id"]) == ("TICKET_BLOCKED", blocker)
    assert "#1 waits for #2 Fuel" in by_ticket["message"]
    assert (by_person["code"], by_person["blocker"]["id"]) == ("TICKET_BLOCKED", ticket)
    assert "No crew" in by_person["message"]

    await ada.do("moveTicket", "ticket { id }", ticketId=blocker, status="CANCELLED")
    assert await waits(ada, task) == [by_person]
    await ada.do("updateTicket", "ticket { id }", ticketId=ticket, blockedReason=None)
    assert await waits(ada, task) == []


async def test_a_task_of_an_archived_project_waits(ada, apollo, ticket):
    task = (await w.task(ada, ticket))["id"]
    await ada.do("archiveProject", "project { id }", projectId=apollo)

    [reason] = await waits(ada, task)
    assert (reason["code"], reason["blocker"]) == ("PROJECT_ARCHIVED", {"__typename": "Project", "id": apollo})


async def test_a_task_of_a_closed_ticket_waits(ada, ticket):
    """Its ticket is in the way until somebody moves it back."""
    task = (await w.task(ada, ticket))["id"]
    for status in ("IN_PROGRESS", "DONE"):
        await ada.do("moveTicket", "ticket { id }", ticketId=ticket, status=status)

    [reason] = await waits(ada, task)
    assert (reason["code"], reason["blocker"]["id"]) == ("TICKET_BLOCKED", ticket)
    await ada.do("moveTicket", "ticket { id }", ticketId=ticket, status="IN_PROGRESS")
    assert await waits(ada, task) == []


async def test_a_task_waits_between_two_attempts(world, ada, ticket):
    """Until a moment that is told; afterwards, or retried by a person, no more."""
    task = (await w.task(ada, ticket))["id"]
    await put(world, task, "due_at = '2999-01-31 12:00:00Z'")

    [reason] = await waits(ada, task)
    assert (reason["code"], reason["until"], reason["blocker"]) == ("BACKOFF", "2999-01-31T12:00:00.000000Z", None)
    await ada.do("cancelTask", "task { id }", taskId=task)
    await ada.do("retryTask", "task { id }", taskId=task)
    assert await waits(ada, task) == []


async def test_a_task_waits_where_nobody_hands_out_work(database_url, settings):
    """On a server that only answers, this is a reason too."""
    async with w.World(replace(settings, orchestrator_enabled=False), database_url).running() as quiet:
        ada = await quiet.account("ada")
        task = (await w.task(ada, (await w.ticket(ada, await w.project(ada)))["id"]))["id"]
        assert [reason["code"] for reason in await waits(ada, task)] == ["ORCHESTRATOR_OFF"]
        async with quiet.server.db.writing() as session:
            await health.note_run(session, "dispatch", "another process", milliseconds=1.0, error=None)
        assert await waits(ada, task) == []


async def test_several_reasons_are_told_together_and_none_once_it_ended(world, ada, apollo, ticket):
    """The most lasting first; a cancelled task waits for nothing."""
    needed = (await w.task(ada, ticket))["id"]
    task = (await w.task(ada, ticket, dependsOn=[needed]))["id"]
    await put(world, task, "due_at = '2999-01-31 12:00:00Z'")
    await ada.do("updateTicket", "ticket { id }", ticketId=ticket, blockedReason="No crew")
    await ada.do("archiveProject", "project { id }", projectId=apollo)

    codes = [reason["code"] for reason in await waits(ada, task)]
    assert codes == ["PROJECT_ARCHIVED", "TICKET_BLOCKED", "DEPENDENCY", "BACKOFF"]

    await ada.do("archiveProject", "project { id }", projectId=apollo, archived=False)
    await ada.do("cancelTask", "task { id }", taskId=task)
    assert await waits(ada, task) == []


async def test_a_task_can_have_a_deadline(ada, ticket):
    """It is told back as it was given."""
    given = {"ticketId": ticket, "title": "Land", "deadlineAt": "2030-01-02T03:04:05Z"}
    made = await ada.do("createTask", "task { deadlineAt }", **given)
    assert made == {"deadlineAt": "2030-01-02T03:04:05.000000Z"}
