"""Why a task waits: every reason that holds it back now, and never one that does not."""

import dataclasses

import pytest

from app import attempts, ids
from app.enums import FailureCode
from orchestrator import dispatch
from tests import world as w
from tests.app.browser import sql
from tests.app.claimed import begin
from tests.orchestrator.outside import Outside, queued, site_of

WAITING = "query($id: ID!) { task(id: $id) { waitingFor { code message until blocker { id } } } }"


@pytest.fixture
def reasons(ada):
    """What a task waits for: its codes."""

    async def codes(task_id):
        return [reason["code"] for reason in await told(ada, task_id)]

    return codes


async def told(ada, task_id):
    return (await ada(WAITING, id=task_id)).data["task"]["waitingFor"]


@pytest.fixture
def site(world):
    """The loops, over as many machines as this server says that there are."""
    return site_of(world, Outside(), machines=world.server.services.fleet.machines)


async def test_a_task_that_may_start_waits_for_nothing(ada, apollo, reasons):
    """Its turn comes with the next look."""
    [task] = await queued(ada, apollo)
    assert await reasons(task) == []


async def test_concurrency(ada, apollo, site, reasons):
    """All places of its project are taken; the reason goes when one is free."""
    await ada.do("updateProject", "project { id }", projectId=apollo, settings={"concurrency": 1})
    first, second = await queued(ada, apollo, 2)
    await dispatch.run_once(site)
    assert (await reasons(first), await reasons(second)) == ([], ["CONCURRENCY"])
    [reason] = await told(ada, second)
    assert (reason["blocker"]["id"], "All 1 places of Apollo" in reason["message"]) == (apollo, True)

    await ada.do("cancelTask", "task { id }", taskId=first)
    await ada.do("updateProject", "project { id }", projectId=apollo, settings={"concurrency": 2})
    assert await reasons(second) == []


async def test_budget(world, ada, apollo, site, reasons):
    """It is used up; a larger one clears it. Whoever reads it and whoever dispatches agree."""
    [task] = await queued(ada, apollo)
    await ada.do("updateProject", "project { id }", projectId=apollo, settings={"budgetUsd": 1})
    await sql(world, "INSERT INTO spendings VALUES (:project, 1000000)", project=ids.decode(apollo)[1])
    assert (await reasons(task), await dispatch.run_once(site)) == (["BUDGET"], 0)

    await ada.do("updateProject", "project { id }", projectId=apollo, settings={"budgetUsd": 2})
    assert (await reasons(task), await dispatch.run_once(site)) == ([], 1)


async def test_provider_quota(world, ada, apollo, reasons):
    """All machines are taken, by whichever project; a machine counts until it is gone."""
    fleet = world.server.services.fleet
    places = fleet.machines
    await ada.do("updateProject", "project { id }", projectId=apollo, settings={"concurrency": places})
    other = await w.project(ada, name="Gemini")
    await queued(ada, apollo, places)
    [task] = await queued(ada, other)
    async with begin(world) as tx:
        await attempts.claim(tx, fleet)
    [reason] = await told(ada, task)
    assert (reason["code"], reason["blocker"]) == ("PROVIDER_QUOTA", None)
    assert reason["message"].startswith(f"All {places} sandboxes that local may run at once are there.")

    await sql(
        world,
        """UPDATE sandboxes SET status = 'failed', failure_code = 'killed', finished_at = omoi_now(),
                  gone_at = omoi_now() WHERE id = (SELECT id FROM sandboxes ORDER BY id LIMIT 1)""",
    )
    assert await reasons(task) == []


async def test_other_providers_take_no_places(world, ada, apollo, reasons):
    """Each provider has its own."""
    fleet = dataclasses.replace(world.server.services.fleet, provider="elsewhere", machines=100)
    await ada.do("updateProject", "project { id }", projectId=apollo, settings={"concurrency": 20})
    tasks = await queued(ada, apollo, 10)
    async with begin(world) as tx:
        assert len(await attempts.claim(tx, fleet)) == 10
    assert await reasons(tasks[0]) == []
    [task] = await queued(ada, apollo)
    assert await reasons(task) == []


async def test_back_off(world, ada, apollo, site, reasons, later):
    """The last attempt failed; it says until when the next one waits."""
    [task] = await queued(ada, apollo)
    async with begin(world) as tx:
        sandbox = await attempts.spawn(tx, ids.decode(task)[1], site.fleet)
        await attempts.lose(tx, sandbox.id, FailureCode.SPAWN_FAILED, "There was no power.")
    await sql(world, "UPDATE sandboxes SET gone_at = omoi_now()")
    [reason] = await told(ada, task)
    assert (reason["code"], reason["until"] is not None) == ("BACKOFF", True)

    with later("10 seconds"):
        assert await reasons(task) == []


async def test_the_last_machine(world, ada, apollo, site, reasons, later):
    """Until it is gone the task waits and says so, in its reasons and to whoever starts it by hand."""
    [task] = await queued(ada, apollo)
    async with begin(world) as tx:
        sandbox = await attempts.spawn(tx, ids.decode(task)[1], site.fleet)
        await attempts.lose(tx, sandbox.id, FailureCode.SANDBOX_LOST, "It vanished.")
    with later("1 minute"):
        [reason] = await told(ada, task)
        refused = await ada.change("spawnSandbox", "sandbox { id }", taskId=task)
        assert [error["message"] for error in refused["errors"]] == [reason["message"]]
        assert (reason["code"], reason["blocker"]["id"]) == ("LAST_MACHINE", ids.encode("sandbox", sandbox.id))
        assert reason["message"].startswith("The sandbox of attempt 1 is LOST and its machine not gone yet.")

        await sql(world, "UPDATE sandboxes SET gone_at = omoi_now()")
        assert await reasons(task) == []


async def test_a_sandbox_that_is_stopping(world, ada, apollo, site, reasons):
    """A task that was cancelled and retried at once waits for the end of the sandbox that it had."""
    [task] = await queued(ada, apollo)
    await dispatch.run_once(site)
    await ada.do("cancelTask", "task { id }", taskId=task)
    await ada.do("retryTask", "task { id }", taskId=task)
    assert (await reasons(task), await dispatch.run_once(site)) == (["LAST_MACHINE"], 0)


async def test_what_lasts_comes_first(ada, apollo, reasons):
    """All reasons at once, the most lasting first."""
    first, second = await queued(ada, apollo, 2)
    await ada.do("setTaskDependencies", "task { id }", taskId=second, dependsOn=[first])
    answer = await ada("query($id: ID!) { task(id: $id) { ticket { id } } }", id=second)
    ticket = answer.data["task"]["ticket"]["id"]
    await ada.do("updateTicket", "ticket { id }", ticketId=ticket, blockedReason="No fuel")
    await ada.do("archiveProject", "project { id }", projectId=apollo)
    assert await reasons(second) == ["PROJECT_ARCHIVED", "TICKET_BLOCKED", "DEPENDENCY"]


async def test_who_cannot_start_is_told_why(ada, apollo, site):
    """Starting a task by hand is refused with the reasons that hold it back."""
    first, second = await queued(ada, apollo, 2)
    await ada.do("setTaskDependencies", "task { id }", taskId=second, dependsOn=[first])
    refused = await ada.change("spawnSandbox", "sandbox { id }", taskId=second)
    [error] = refused["errors"]
    assert (error["code"], error["message"][:32]) == ("CONFLICT", "It depends on Task 0, which is P")
