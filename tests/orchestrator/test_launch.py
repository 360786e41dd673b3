"""Launch: one machine for each row, whoever dies in the middle, or the reason why there is none."""

import asyncio
from datetime import datetime

import pytest

from app import ids
from app.models import Event, Task, Ticket
from orchestrator import dispatch, launch, rescue, watch
from orchestrator.idle import Vigil
from orchestrator.launch import Launcher
from orchestrator.providers import OrderRefused, ProviderError, ProviderFull
from tests import world as w
from tests.orchestrator.outside import launched, nothing, only, queued, raising, rows
from tests.servers import until


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


WAITS = "query($id: ID!) { task(id: $id) { status attempt maxAttempts waitingFor { code message until } } }"
FULL = ProviderFull("All places are taken.")


@pytest.fixture
async def waiting(ada, apollo, site, outside):
    """A task for whose machine there is no room at the provider."""
    [task] = await queued(ada, apollo)
    await dispatch.run_once(site)
    outside.on_create = raising(FULL)
    await launched(site)
    return task


async def test_a_full_provider_is_asked_again(world, ada, site, outside, waiting, later):
    """The same try waits and says what for; when there is room its machine is made by the same name."""
    task = (await ada(WAITS, id=waiting)).data["task"]
    [reason] = task.pop("waitingFor")
    assert task == {"status": "ASSIGNED", "attempt": 1, "maxAttempts": 3}
    assert (reason["code"], reason["until"] is not None) == ("PROVIDER_QUOTA", True)
    assert "All places are taken." in reason["message"]
    assert await Launcher(site).run_once() == 0

    outside.on_create = nothing
    with later("15 seconds"):
        await launched(site)
    assert ((await only(world)).status.name, len({order.name for order in outside.orders})) == ("STARTING", 1)
    assert (await ada(WAITS, id=waiting)).data["task"]["waitingFor"] == []


async def test_a_provider_that_stays_full_leaves_nothing_behind(world, site, outside, waiting, later):
    """However long it stays full: one row, one attempt, and one event that says so; nobody takes it for lost."""
    before = await rows(world, Event)
    for hour in range(1, 6):
        with later(f"{hour} hours"):
            await launched(site)
            await watch.run_once(site)
            await Vigil(site).run_once()
            assert await rescue.run_once(site) == 0
    assert ((await only(world, Task)).attempt, (await only(world)).status.name) == (1, "PROVISIONING")
    assert (len(outside.orders), len(await rows(world, Event))) == (6, len(before))
    assert before[-1].payload == {"status": "PROVISIONING", "message": "All places are taken."}


async def test_the_time_of_a_try_begins_with_its_launch(world, site, outside, waiting, later):
    """What it waited for room is not taken from it."""
    outside.on_create = nothing
    with later("5 hours"):
        await Vigil(site).run_once()
        await launched(site)
        await Vigil(site).run_once()
    sandbox = await only(world)
    assert (sandbox.status.name, sandbox.desired.name) == ("STARTING", "RUN")
    with later("10 hours"):
        await Vigil(site).run_once()
    assert (await only(world)).stop_code.name == "TIMED_OUT"


async def test_what_waits_for_room_is_not_silent(world, site, outside, waiting, later):
    """A worker has its whole time to be heard of, however long there was no room for it."""
    vigil = Vigil(site)
    for minute in range(31):
        with later(f"{minute} minutes"):
            await vigil.run_once()
    outside.on_create = nothing
    with later("30 minutes"):
        await launched(site)
        await vigil.run_once()
    sandbox = await only(world)
    assert (sandbox.status.name, sandbox.desired.name) == ("STARTING", "RUN")


async def test_what_waits_for_room_is_stopped_at_once(world, ada, site, waiting):
    """It is in nobody's hand, so nobody has to let go of it first."""
    await ada.do("cancelTask", "task { id }", taskId=waiting)
    await watch.run_once(site)
    assert ((await only(world)).status.name, (await only(world, Task)).status.name) == ("CANCELLED", "CANCELLED")
    assert await Launcher(site).run_once() == 0


async def test_a_start_that_hangs_is_given_up(world, ada, apollo, site, outside, monkeypatch):
    """A provider that never answers costs one try and its place, and says so; the task is tried again."""
    monkeypatch.setattr(launch, "START_SECONDS", 0.01)
    await queued(ada, apollo)
    await dispatch.run_once(site)

    async def hang(name):
        await asyncio.Event().wait()

    outside.on_create = hang
    async with asyncio.timeout(10):
        await launched(site)
    sandbox, task = await only(world), await only(world, Task)
    assert (sandbox.status.name, sandbox.failure_code.name, task.status.name) == ("FAILED", "SPAWN_FAILED", "PENDING")
    assert sandbox.failure_message == "Its machine did not start within 0.01 seconds."


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
        raise FULL

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
