"""Idle: who falls silent or takes too long is asked to stop, and the task says which it was."""

from datetime import UTC, datetime

import pytest

from app import attempts, events, patience
from app.enums import FailureCode, SandboxEventType
from app.masking import Mask
from app.models import Task
from orchestrator import dispatch, watch
from orchestrator.idle import Vigil
from tests.app.claimed import begin
from tests.orchestrator.outside import launched, only, queued


@pytest.fixture
def vigil(site):
    return Vigil(site)


FAILED = {"success": False, "summary": "I was asked to stop.", "failure_code": FailureCode.AGENT_ERROR}


def event(number, kind="LOG"):
    return {
        "producer_seq": number,
        "type": SandboxEventType[kind],
        "occurred_at": datetime(2026, 1, 31, tzinfo=UTC),
        "payload": {"text": "Working."},
    }


@pytest.fixture
def said(world):
    """The worker of the only sandbox reports these kinds of events, and that it lives."""

    async def report(*kinds):
        sandbox = await only(world)
        batch = [event(sandbox.accepted_through + n, kind) for n, kind in enumerate(kinds, 1)]
        async with begin(world) as tx:
            return await events.report(tx, sandbox.id, events.read(batch), heartbeat=True, mask=Mask(()))

    return report


@pytest.fixture
async def started(world, ada, apollo, site):
    await queued(ada, apollo)
    await dispatch.run_once(site)
    await launched(site)


async def end(world, **given):
    async with begin(world) as tx:
        await attempts.finish(tx, (await only(world)).id, {**FAILED, **given})


@pytest.fixture
def turns(site, later, vigil):
    """The loop turns once in each of these minutes."""

    async def turn(minutes):
        for minute in minutes:
            with later(f"{minute} minutes"):
                await vigil.run_once()

    return turn


async def test_the_silent_are_stopped(world, vigil, turns, started, said, later):
    """It lives, but nothing happens in it: STALLED, which is tried again."""
    await said("STARTED")
    await turns(range(25))
    assert (await only(world)).status.name == "RUNNING"
    with later("25 minutes"):
        assert (await said()).desired.name == "RUN"
        await vigil.run_once()
        assert (await said()).desired.name == "STOP"
        await end(world)

    sandbox, task = await only(world), await only(world, Task)
    assert (sandbox.status.name, sandbox.failure_code.name) == ("FAILED", "STALLED")
    assert sandbox.failure_message == "Nothing has happened in it for 0:25:00."
    assert (task.status.name, task.attempt) == ("PENDING", 1)


async def test_the_busy_are_left_alone(world, turns, started, said, later):
    """Whatever happens counts, however old the sandbox is."""
    await turns(range(24))
    with later("24 minutes"):
        await said("TOOL_USE")
    await turns(range(24, 49))
    assert (await only(world)).status.name == "RUNNING"


async def test_the_cut_off_are_left_alone(world, turns, started, said):
    """Nobody is heard of for a while: it may work well, and reports when it can."""
    await said("STARTED")
    await turns(range(25))
    assert (await only(world)).status.name == "RUNNING"


async def test_who_hangs_is_stopped(world, site, turns, started, said, later):
    """Its provider vouches for a process that says nothing any more: STALLED, tried again, and its machine goes."""
    await said("STARTED")
    await turns(range(26))
    sandbox = await only(world)
    assert (sandbox.status.name, sandbox.stop_code.name) == ("STOPPING", "STALLED")
    with later("26 minutes"):
        await watch.run_once(site)
        await watch.run_once(site)

    sandbox, task = await only(world), await only(world, Task)
    assert (sandbox.failure_message, task.status.name) == ("Its worker was not heard of for 0:25:00.", "PENDING")
    assert (site.provider.deleted, site.provider.machines) == ([sandbox.name], {})


@pytest.mark.parametrize("kind", ["STARTED", "WAITING"])
async def test_the_absence_of_the_server_does_not_count(world, turns, started, said, kind):
    """Workers could say nothing while it was away, or while its machine slept: they have their time after that."""
    await said(kind)
    await turns(range(10))
    await turns(range(100, 125))
    assert (await only(world)).stop_code is None
    await turns([125])
    assert (await only(world)).stop_code.name == "STALLED"


async def test_who_comes_back_late_has_time_for_its_work(world, vigil, turns, started, said, later):
    """A worker whose server was away had no model either: that nothing happened meanwhile is not its fault."""
    await said("STARTED")
    await turns([0, 100])
    with later("101 minutes"):
        await said()
        await vigil.run_once()
    assert (await only(world)).status.name == "RUNNING"


async def test_who_reports_in_time_is_spared(world, turns, started, said, monkeypatch):
    """Whoever is heard of between the look and the stop goes on."""
    await said("STARTED")
    found = patience.found

    async def found_and_heard(*given, **named):
        those = await found(*given, **named)
        if those:
            await said("TOOL_USE")
        return those

    monkeypatch.setattr(patience, "found", found_and_heard)
    await turns(range(26))
    sandbox = await only(world)
    assert (sandbox.status.name, sandbox.accepted_through) == ("RUNNING", 2)


async def test_who_waits_for_a_message_is_left_alone(world, turns, vigil, started, said, later):
    """It is not its fault that nothing happens."""
    await said("STARTED", "WAITING")
    await turns(range(25))
    with later("25 minutes"):
        await said()
        await vigil.run_once()
    assert (await only(world)).status.name == "WAITING"


async def test_a_machine_without_a_worker_is_stopped(world, turns, started):
    """It runs, but nothing has ever been heard from it."""
    await turns(range(26))
    sandbox = await only(world)
    assert (sandbox.status.name, sandbox.stop_code.name) == ("STOPPING", "STALLED")


async def test_the_overdue_are_stopped(world, vigil, started, said, later):
    """The time of a try is over: TIMED_OUT, and the task is not tried again by itself."""
    with later("3 hours 59 minutes"):
        await said("TOOL_USE")
        await vigil.run_once()
        assert (await only(world)).status.name == "RUNNING"
    with later("4 hours 1 minute"):
        await vigil.run_once()
        assert (await said()).desired.name == "STOP"
        await end(world)

    task = await only(world, Task)
    assert (task.status.name, task.failure_code.name) == ("FAILED", "TIMED_OUT")
    assert task.failure_message == "The time that a try gets is over."


async def test_the_first_reason_stays(world, vigil, turns, started, later):
    """Who was asked to stop for one reason is not asked for another."""
    await turns(range(26))
    with later("5 hours"):
        await vigil.run_once()
    assert (await only(world)).stop_code.name == "STALLED"


async def test_a_result_in_time_counts(world, vigil, started, said, later):
    """Who was asked to stop and still has a result, has a result."""
    with later("5 hours"):
        await vigil.run_once()
        await end(world, success=True)
    assert (await only(world, Task)).status.name == "COMPLETED"
