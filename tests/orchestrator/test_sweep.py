"""Sweep: machines that no sandbox owns are deleted, and never any other."""

import pytest

from app import attempts
from orchestrator import dispatch, sweep
from orchestrator.providers import ProviderError
from orchestrator.providers.local.provider import LocalProvider
from tests.app.browser import sql
from tests.app.claimed import begin
from tests.orchestrator.outside import launched, only, queued, site_of
from tests.orchestrator.providers import boxes
from tests.servers import short_folder


async def test_what_nobody_owns_is_deleted(site, outside):
    """Machines without a row."""
    outside.put("omoi-x-1")
    outside.put("omoi-x-2")

    assert await sweep.run_once(site) == 2
    assert outside.machines == {}
    assert await sweep.run_once(site) == 0


async def test_what_a_row_owns_stays(world, ada, apollo, site, outside):
    """While it works, and after its end until somebody has kept its last words; only then it is an orphan."""
    await queued(ada, apollo)
    await dispatch.run_once(site)
    await launched(site)
    assert await sweep.run_once(site) == 0
    sandbox = await only(world)
    async with begin(world) as tx:
        await attempts.finish(tx, sandbox.id, {"success": True, "summary": "Done."})
    assert await sweep.run_once(site) == 0

    await sql(world, "UPDATE sandboxes SET gone_at = omoi_now()")
    assert await sweep.run_once(site) == 1
    assert outside.deleted == [sandbox.name]


async def test_one_sweep_deletes_so_many(site, outside):
    """A wrong list costs no more than that before somebody sees it in the log."""
    for number in range(sweep.MOST + 5):
        outside.put(f"omoi-x-{number}")

    assert [await sweep.run_once(site) for _ in range(3)] == [sweep.MOST, 5, 0]


@pytest.mark.parametrize("when", ["the list", "the first deletion"])
async def test_a_row_that_appears_meanwhile_saves_its_machine(world, ada, apollo, site, outside, when):
    """The rows are read after the list, and once more just before a machine is deleted."""
    await queued(ada, apollo)
    await dispatch.run_once(site)
    name = (await only(world)).name
    await sql(world, "UPDATE sandboxes SET name = 'elsewhere'")
    outside.put("omoi-a")
    outside.put(name)

    async def appears(_):
        await sql(world, "UPDATE sandboxes SET name = :name", name=name)

    setattr(outside, "on_list" if when == "the list" else "on_delete", appears)
    assert await sweep.run_once(site) == 1
    assert (outside.deleted, list(outside.machines)) == (["omoi-a"], [name])


async def test_one_that_cannot_be_deleted_holds_no_other_back(site, outside):
    """It is passed over until the next time."""
    outside.put("omoi-stuck")
    outside.put("omoi-x")

    async def stuck(name):
        if name == "omoi-stuck":
            raise ProviderError("It does not answer.")

    outside.on_delete = stuck
    assert await sweep.run_once(site) == 1
    assert list(outside.machines) == ["omoi-stuck"]


async def test_machines_of_others_stay(world):
    """Another installation may use the same provider: only what carries this one's label is looked at."""
    deployment = world.server.services.fleet.deployment
    with short_folder() as folder:
        provider = LocalProvider(folder / "s", deployment=deployment, machines=4)
        await provider.start(world.url)
        async with boxes.running(provider, boxes.order(labels={"deployment": "theirs"})) as theirs:
            ours = await provider.create(boxes.order(labels={"deployment": deployment}))
            assert await sweep.run_once(site_of(world, provider)) == 1
            assert await provider.get(ours.name) is None
            assert (await provider.get(theirs.name)).state.name == "RUNNING"
