"""Rescue: a task leaves a sandbox for which nobody vouches any more, and no other one."""

import asyncio

import pytest

from app import events
from app.masking import Mask
from app.models import Task
from orchestrator import dispatch, rescue
from orchestrator.providers import ProviderError
from tests.app.browser import sql
from tests.app.claimed import begin
from tests.orchestrator.outside import launched, only, queued, raising, rows


@pytest.fixture
def started(world, ada, apollo, site):
    """A sandbox whose machine runs."""

    async def start(**given):
        await queued(ada, apollo, **given)
        await dispatch.run_once(site)
        await launched(site)
        return await only(world)

    return start


async def test_the_task_of_a_lost_sandbox_is_tried_again(world, site, outside, started, later):
    """Its lease is over and there is no machine: PENDING, and its next sandbox is the next attempt."""
    sandbox = await started()
    outside.machines.clear()
    with later("89 seconds"):
        assert await rescue.run_once(site) == 0
    with later("91 seconds"):
        assert await rescue.run_once(site) == 1

    lost, task = await only(world), await only(world, Task)
    assert (lost.id, lost.status.name, lost.failure_code.name) == (sandbox.id, "LOST", "SANDBOX_LOST")
    assert (task.status.name, task.attempt) == ("PENDING", 1)
    await sql(world, "UPDATE sandboxes SET gone_at = omoi_now()")
    with later("2 minutes"):
        assert await dispatch.run_once(site) == 1
    assert [one.attempt for one in await rows(world)] == [1, 2]


async def test_the_last_attempt_is_poison(world, site, outside, started, later):
    """A task that takes each of its sandboxes with it is given up, and says so."""
    await started(maxAttempts=1)
    outside.machines.clear()
    with later("91 seconds"):
        await rescue.run_once(site)

    task = await only(world, Task)
    assert (task.status.name, task.failure_code.name) == ("FAILED", "POISON")
    assert task.failure_message.startswith("Attempt 1 of 1 was the last.")


async def test_a_machine_that_runs_is_not_lost(world, site, outside, started, later):
    """Its worker may be cut off and yet at work: its lease is renewed."""
    before = await started()
    with later("2 hours"):
        assert await rescue.run_once(site) == 0
    sandbox = await only(world)
    assert (sandbox.status.name, sandbox.lease_until > before.lease_until) == ("STARTING", True)


async def test_a_machine_that_has_ended_vouches_for_nobody(world, site, outside, started, later):
    """It is there, but nobody works in it."""
    sandbox = await started()
    outside.end(sandbox.name, exit_code=1)
    with later("2 minutes"):
        assert await rescue.run_once(site) == 1


async def test_a_heartbeat_in_between_wins(world, site, outside, started, later):
    """Whoever is heard of, while the provider is asked, has not been lost."""
    sandbox = await started()
    outside.machines.clear()

    async def beat(name):
        async with begin(world) as tx:
            await events.report(tx, sandbox.id, events.read([]), heartbeat=True, mask=Mask(()))

    outside.on_get = beat
    with later("2 minutes"):
        assert await rescue.run_once(site) == 0
    assert (await only(world)).status.name == "RUNNING"


async def test_nobody_is_lost_while_the_provider_is_silent(world, site, outside, started, later):
    """Without its word nothing is known, so nothing is done."""
    await started()
    outside.machines.clear()
    outside.on_get = raising(ProviderError("It does not answer."))
    with later("2 minutes"), pytest.raises(ProviderError):
        await rescue.run_once(site)
    assert (await only(world)).status.name == "STARTING"


async def test_two_rescuers_lose_it_once(world, site, outside, started, later):
    """However many look at the same time, the task has one attempt less."""
    await started()
    outside.machines.clear()
    with later("2 minutes"):
        assert sum(await asyncio.gather(*(rescue.run_once(site) for _ in range(4)))) == 1
    assert (await only(world, Task)).attempt == 1
