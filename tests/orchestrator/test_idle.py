"""Idle: who falls silent or takes too long is asked to stop, and the task says which it was."""

from datetime import UTC, datetime

import pytest

from app import attempts, events
from app.enums import FailureCode, SandboxEventType
from app.masking import Mask
from app.models import Task
from orchestrator import dispatch, idle
from tests.app.claimed import begin
from tests.orchestrator.test_dispatch import Outside, only, queued, site_of
from tests.orchestrator.test_launch import launched


@pytest.fixture
def outside():
    return Outside()


@pytest.fixture
def site(world, outside):
    return site_of(world, outside)


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
            return await events.report(tx, sandbox.id, batch, heartbeat=True, mask=Mask(()))

    return report


@pytest.fixture
async def started(world, ada, apollo, site):
    await queued(ada, apollo)
    await dispatch.run_once(site)
    await launched(site)


async def end(world, **given):
    async with begin(world) as tx:
        await attempts.finish(tx, (await only(world)).id, {**FAILED, **given})


async def test_the_silent_are_stopped(world, site, started, said, later):
    """It lives, but nothing happens in it: STALLED, which is tried again."""
    await said("STARTED")
    with later("24 minutes"):
        await said()
        await idle.run_once(site)
        assert (await only(world)).status.name == "RUNNING"
    with later("26 minutes"):
        assert (await said()).desired.name == "RUN"
        await idle.run_once(site)
        assert (await said()).desired.name == "STOP"
        await end(world)

    sandbox, task = await only(world), await only(world, Task)
    assert (sandbox.status.name, sandbox.failure_code.name) == ("FAILED", "STALLED")
    assert sandbox.failure_message == "Nothing has happened in it for 0:25:00."
    assert (task.status.name, task.attempt) == ("PENDING", 1)


async def test_the_busy_are_left_alone(world, site, started, said, later):
    """Whatever happens counts, however old the sandbox is."""
    with later("24 minutes"):
        await said("TOOL_USE")
    with later("48 minutes"):
        await said()
        await idle.run_once(site)
    assert (await only(world)).status.name == "RUNNING"


async def test_the_cut_off_are_left_alone(world, site, started, said, later):
    """Nobody is heard of at all: it may work well, and reports when it can."""
    await said("STARTED")
    with later("26 minutes"):
        await idle.run_once(site)
    assert (await only(world)).status.name == "RUNNING"


async def test_who_waits_for_a_message_is_left_alone(world, site, started, said, later):
    """It is not its fault that nothing happens."""
    await said("STARTED", "WAITING")
    with later("26 minutes"):
        await said()
        await idle.run_once(site)
    assert (await only(world)).status.name == "WAITING"


async def test_a_machine_without_a_worker_is_stopped(world, site, started, later):
    """It runs, but nothing has ever been heard from it."""
    with later("26 minutes"):
        await idle.run_once(site)
    sandbox = await only(world)
    assert (sandbox.status.name, sandbox.stop_code.name) == ("STOPPING", "STALLED")


async def test_the_overdue_are_stopped(world, site, started, said, later):
    """The time of a try is over: TIMED_OUT, and the task is not tried again by itself."""
    with later("3 hours 59 minutes"):
        await said("TOOL_USE")
        await idle.run_once(site)
        assert (await only(world)).status.name == "RUNNING"
    with later("4 hours 1 minute"):
        await idle.run_once(site)
        assert (await said()).desired.name == "STOP"
        await end(world)

    task = await only(world, Task)
    assert (task.status.name, task.failure_code.name) == ("FAILED", "TIMED_OUT")
    assert task.failure_message == "The time that a try gets is over."


async def test_the_first_reason_stays(world, site, started, said, later):
    """Who was asked to stop for one reason is not asked for another."""
    with later("26 minutes"):
        await idle.run_once(site)
    with later("5 hours"):
        await idle.run_once(site)
    assert (await only(world)).stop_code.name == "STALLED"


async def test_a_result_in_time_counts(world, site, started, said, later):
    """Who was asked to stop and still has a result, has a result."""
    with later("5 hours"):
        await idle.run_once(site)
        await end(world, success=True)
    assert (await only(world, Task)).status.name == "COMPLETED"
