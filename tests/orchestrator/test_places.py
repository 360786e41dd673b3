"""Several servers with one database, each with machines of its own: none of them touches what the others have."""

import dataclasses

import pytest

from app import machines
from app.enums import FailureCode
from app.models import Task
from orchestrator import dispatch, rescue, sweep, watch
from orchestrator.providers.local.provider import LocalProvider
from tests.orchestrator.outside import Outside, launched, only, queued, rows, site_of


@pytest.fixture
def elsewhere(world):
    return at(site_of(world, Outside()), "elsewhere")


@pytest.fixture
def here(site):
    return at(site, "here")


def at(site, place, **given):
    return dataclasses.replace(site, fleet=dataclasses.replace(site.fleet, place=place, **given))


async def started(ada, apollo, site):
    await queued(ada, apollo)
    await dispatch.run_once(site)
    await launched(site)


async def test_what_runs_elsewhere_is_left_alone(world, ada, apollo, here, elsewhere, later):
    """No loop takes a machine that it cannot see for one that is gone, however long that has been there."""
    await started(ada, apollo, here)
    await watch.run_once(elsewhere)
    with later("14 minutes"):
        assert await rescue.run_once(elsewhere) == 0
        await sweep.run_once(elsewhere)
        await watch.run_once(elsewhere)
    sandbox = await only(world)
    assert (sandbox.status.name, sandbox.place) == ("STARTING", "here")
    assert list(here.provider.machines) == [sandbox.name]


async def test_each_place_has_room_of_its_own(world, ada, apollo, here, elsewhere):
    """What is full here is not full elsewhere; what has no machine yet counts for whoever asks."""
    here, elsewhere = at(here, "here", machines=1), at(elsewhere, "elsewhere", machines=1)
    for _ in range(3):
        await queued(ada, apollo)
    assert await dispatch.run_once(here) == 1
    assert await dispatch.run_once(elsewhere) == 0
    await launched(here)
    assert await dispatch.run_once(here) == 0
    assert await dispatch.run_once(elsewhere) == 1
    await launched(elsewhere)
    assert [sandbox.place for sandbox in await rows(world)] == ["here", "elsewhere"]


async def test_what_a_launch_began_elsewhere_is_not_taken_over(world, ada, apollo, here, elsewhere, later):
    """There may be a machine of that name there already; the place takes it up itself when it is back."""
    await queued(ada, apollo)
    await dispatch.run_once(here)
    async with world.server.db.writing() as session:
        [taken] = await machines.to_launch(session, here.fleet, life=here.fleet.life, limit=1)
    with later("1 minute"):
        await launched(elsewhere)
        assert elsewhere.provider.machines == {}
        await launched(here)
    assert list(here.provider.machines) == [taken.name]


async def test_a_place_that_does_not_come_back_is_given_up(world, ada, apollo, here, elsewhere, later):
    """After a quarter of an hour without a word its tasks go on elsewhere, and nothing there waits for it."""
    await started(ada, apollo, here)
    with later("17 minutes"):
        assert await rescue.run_once(elsewhere) == 1
        lost, task = await only(world), await only(world, Task)
        assert (lost.failure_code, lost.gone_at is not None) == (FailureCode.SANDBOX_LOST, True)
        assert task.status.name == "PENDING"
    with later("18 minutes"):
        assert await dispatch.run_once(elsewhere) == 1
        await sweep.run_once(here)  # it is back after all
    assert here.provider.machines == {}


async def test_a_folder_keeps_its_name(tmp_path):
    """Servers of one folder, one after another or at once, see to the same sandboxes; those of another to others."""
    names = [LocalProvider(tmp_path / folder, deployment="d", machines=1).place() for folder in ("a", "a", "b")]
    assert names[0] == names[1] != names[2]
