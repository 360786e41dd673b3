"""Launch: one machine for each row, whoever dies in the middle, or the reason why there is none."""

import asyncio
from datetime import datetime

import pytest

from app import ids
from app.models import Task, Ticket
from orchestrator import dispatch, launch, rescue, watch
from orchestrator.launch import Launcher
from orchestrator.providers import OrderRefused, ProviderError, ProviderFull
from tests import world as w
from tests.orchestrator.test_dispatch import Outside, nothing, only, queued, rows, site_of
from tests.servers import until


@pytest.fixture
def outside():
    return Outside()


@pytest.fixture
def site(world, outside):
    return site_of(world, outside)


async def launched(site) -> None:
    """All that wants a machine is asked for, and answered."""
    launcher = Launcher(site)
    await launcher.run_once()
    await asyncio.gather(*launcher._going.values())


def raising(error):
    async def refuse(name):
        raise error

    return refuse


async def test_a_machine_is_ordered_after_its_row(world, ada, apollo, site, outside):
    """While the provider works, the row is there for everybody to see; then it is STARTING."""
    await queued(ada, apollo)
    await dispatch.run_once(site)

    async def look(name):
        sandbox = await only(world)
        assert (sandbox.name, sandbox.status.name) == (name, "PROVISIONING")

    outside.on_create = look
    await launched(site)
    sandbox = await only(world)
    assert (sandbox.status.name, sandbox.provider_id) == ("STARTING", f"id of {sandbox.name}")
    assert len(outside.orders) == 1


async def test_a_launch_that_nobody_noted_is_adopted(world, ada, apollo, site, outside, later):
    """The provider answered, and the server died: the next one asks by the same name and finds that machine."""
    await queued(ada, apollo)
    await dispatch.run_once(site)
    reached = asyncio.Event()

    async def answer(name):
        outside.put(name, outside.orders[-1].labels)
        reached.set()
        await asyncio.Event().wait()

    outside.on_create = answer
    dying = Launcher(site)
    await dying.run_once()
    await reached.wait()
    await dying.close()
    outside.on_create = raising(AssertionError("It is in the hand of another server still."))
    assert await Launcher(site).run_once() == 0

    outside.on_create = nothing
    with later("11 seconds"):
        await launched(site)
    assert list(outside.machines) == [(await only(world)).name]
    assert [order.labels for order in outside.orders] == [outside.orders[0].labels] * 2
    assert (await only(world)).status.name == "STARTING"


async def test_a_full_provider_costs_no_attempt(world, ada, apollo, site, outside, later):
    """The task waits a little, and has as many tries left as before."""
    await queued(ada, apollo, maxAttempts=1)
    await dispatch.run_once(site)
    outside.on_create = raising(ProviderFull("All places are taken."))
    await launched(site)
    task, sandbox = await only(world, Task), await only(world)
    assert (task.status.name, task.max_attempts - task.attempt) == ("PENDING", 1)
    assert (sandbox.status.name, sandbox.failure_message) == ("FAILED", "All places are taken.")
    assert sandbox.boot[-1]["error"] == "All places are taken."
    await watch.run_once(site)
    assert await dispatch.run_once(site) == 0

    outside.on_create = nothing
    with later("15 seconds"):
        assert await dispatch.run_once(site) == 1
        await launched(site)
    assert [one.status.name for one in await rows(world)] == ["FAILED", "STARTING"]


async def test_a_refused_order_ends_the_task(world, ada, apollo, site, outside):
    """Trying again would end the same way; the task says why."""
    await queued(ada, apollo)
    await dispatch.run_once(site)
    outside.on_create = raising(OrderRefused("There is no image of that name."))
    await launched(site)

    task = await only(world, Task)
    assert (task.status.name, task.failure_code.name) == ("FAILED", "SPAWN_FAILED")
    assert task.failure_message == "There is no image of that name."


async def test_other_failures_are_tried_again(world, ada, apollo, site, outside, later):
    """After pauses that grow, until the attempts are used up."""
    await queued(ada, apollo, maxAttempts=4)
    outside.on_create = raising(ProviderError("The provider did not answer."))
    pauses = []
    for hour in range(4):
        with later(f"{hour} hours"):
            assert await dispatch.run_once(site) == 1
            await launched(site)
            await watch.run_once(site)
            sandbox, task = (await rows(world))[-1], await only(world, Task)
            pauses.append((task.due_at - sandbox.finished_at).total_seconds())

    assert 5 <= pauses[0] <= 10 <= pauses[1] <= 20 <= pauses[2] <= 40
    assert (task.status.name, task.failure_code.name) == ("FAILED", "SPAWN_FAILED")
    assert task.failure_message == "The provider did not answer."


async def test_the_steps_of_a_start_are_kept(world, ada, apollo, site, outside):
    """Each with its times, and the one that failed with the reason."""
    await queued(ada, apollo)
    await dispatch.run_once(site)
    outside.on_create = raising(ProviderError("The provider did not answer."))
    await launched(site)

    order, machine = (await only(world)).boot
    assert [(step["name"], step["error"]) for step in (order, machine)] == [
        ("order", None),
        ("machine", "The provider did not answer."),
    ]
    times = [datetime.fromisoformat(step[name]) for step in (order, machine) for name in ("startedAt", "finishedAt")]
    assert times == sorted(times)


async def test_a_ticket_has_one_branch(world, ada, site):
    """Named at its first launch, and the same for every task and try after that, whatever it is called by then."""
    project = await w.project(ada, repository={"cloneUrl": "https://git.example/work.git"})
    await queued(ada, project)
    await dispatch.run_once(site)
    await launched(site)
    ticket = await only(world, Ticket)
    await ada.do("updateTicket", "ticket { id }", ticketId=ids.encode("ticket", ticket.id), title="Land on Mars")
    await w.task(ada, ids.encode("ticket", ticket.id))
    await dispatch.run_once(site)
    await launched(site)

    assert ticket.branch == f"feature/{ticket.number}-land-on-the-moon"
    assert [sandbox.branch for sandbox in await rows(world)] == [ticket.branch] * 2


async def test_stopping_during_a_launch_leaves_no_machine(world, ada, apollo, site, outside, later):
    """Whoever stops a sandbox whose machine is being made sees it end, and the machine go."""
    [task] = await queued(ada, apollo)
    await dispatch.run_once(site)

    async def stop(name):
        await ada.do("cancelTask", "task { id }", taskId=task)

    outside.on_create = stop
    await launched(site)
    with later("31 seconds"):
        await watch.run_once(site)
        await watch.run_once(site)
    sandbox = await only(world)
    assert (sandbox.status.name, outside.machines, outside.deleted) == ("CANCELLED", {}, [sandbox.name])
    assert sandbox.gone_at is not None


async def test_stopping_wins_over_a_full_provider(world, ada, apollo, site, outside):
    """Cancelled while the provider says that it is full: CANCELLED, and the task waits for nothing."""
    [task] = await queued(ada, apollo)
    await dispatch.run_once(site)

    async def stop(name):
        await ada.do("cancelTask", "task { id }", taskId=task)
        raise ProviderFull("All places are taken.")

    outside.on_create = stop
    await launched(site)
    assert ((await only(world)).status.name, (await only(world, Task)).status.name) == ("CANCELLED", "CANCELLED")


async def test_stopping_before_a_launch_orders_nothing(world, ada, apollo, site, outside):
    """Nobody asks for a machine any more."""
    [task] = await queued(ada, apollo)
    await dispatch.run_once(site)
    await ada.do("cancelTask", "task { id }", taskId=task)

    assert await Launcher(site).run_once() == 0
    await watch.run_once(site)
    assert (await only(world)).status.name == "CANCELLED"


async def test_a_row_may_wait_long_for_its_launch(world, ada, apollo, site, later):
    """Where many are launched the last ones wait for their turn, and nobody takes them for lost."""
    await queued(ada, apollo)
    await dispatch.run_once(site)

    with later("5 minutes"):
        assert await rescue.run_once(site) == 0
        await launched(site)
    assert (await only(world)).status.name == "STARTING"


async def test_launches_go_on_beside_each_other(world, ada, apollo, site, outside):
    """So many at once and no more; a slow one holds no other back, and keeps its row in this process's hand."""
    await ada.do("updateProject", "project { id }", projectId=apollo, settings={"concurrency": 20})
    await queued(ada, apollo, launch.AT_ONCE + 1)
    await dispatch.run_once(site)
    slow, release = (await rows(world))[0].name, asyncio.Event()

    async def wait(name):
        if name == slow:
            await release.wait()

    outside.on_create = wait
    launcher = Launcher(site)
    assert await launcher.run_once() == launch.AT_ONCE
    await until(lambda: len(launcher._going) == 1)
    assert await launcher.run_once() == 1
    await until(lambda: len(launcher._going) == 1)
    before = (await rows(world))[0].launch_until
    await launcher.run_once()
    assert (await rows(world))[0].launch_until > before
    release.set()
    await until(lambda: not launcher._going)
    assert {sandbox.status.name for sandbox in await rows(world)} == {"STARTING"}


async def test_a_failure_that_nobody_foresaw_ends_the_try(world, ada, apollo, site, outside, later):
    """It is said in the log and as the reason, and the task is tried again like after any failed start."""
    await queued(ada, apollo)
    await dispatch.run_once(site)
    outside.on_create = raising(ZeroDivisionError())
    await launched(site)
    sandbox = await only(world)
    assert (sandbox.status.name, sandbox.failure_message) == ("FAILED", "Its start failed: ZeroDivisionError.")
    assert [step["name"] for step in sandbox.boot] == ["order", "machine"]
