"""Watch: rows and machines are kept together, and an end without a report is told for what it was."""

import pytest
from sqlalchemy import select

from app import attempts, ids, sandboxes
from app.models import Sandbox, Task
from orchestrator import dispatch, watch
from orchestrator.providers import ProviderError
from orchestrator.providers.local.provider import LocalProvider
from tests.app.claimed import begin
from tests.orchestrator.outside import launched, nothing, only, queued, raising, rows, site_of
from tests.orchestrator.providers.boxes import ended
from tests.servers import short_folder


@pytest.fixture
def started(world, ada, apollo, site):
    """Sandboxes whose machines run; answers their rows."""

    async def start(count=1):
        await queued(ada, apollo, count)
        await dispatch.run_once(site)
        await launched(site)
        return await rows(world)

    return start


async def finished(world, sandbox):
    async with begin(world) as tx:
        await attempts.finish(tx, sandbox.id, {"success": True, "summary": "Done."})


async def kept_log(world, sandbox):
    async with world.server.db.reading() as session:
        return await session.scalar(select(Sandbox.log).where(Sandbox.id == sandbox.id))


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ({"exit_code": 3}, ("SANDBOX_LOST", "LOST", "The worker ended without a report (exit code 3).")),
        ({"exit_code": 0}, ("SANDBOX_LOST", "LOST", "The worker ended without a report (exit code 0).")),
        ({"exit_code": 137, "detail": "By the host."}, ("KILLED", "FAILED", "The worker was killed. By the host.")),
        ({"exit_code": 137, "out_of_memory": True}, ("OUT_OF_MEMORY", "FAILED", "The sandbox ran out of memory.")),
        ({"exit_code": 1, "out_of_memory": True}, ("OUT_OF_MEMORY", "FAILED", "The sandbox ran out of memory.")),
    ],
)
async def test_an_end_without_a_report_is_told(world, site, outside, started, how, told):
    """By what the provider knows of it and by the worker's last line; the task is tried again."""
    [sandbox] = await started()
    outside.logs[sandbox.name] = "Hello.\nGoodbye.\n"
    outside.end(sandbox.name, **how)
    await watch.run_once(site)

    sandbox, task = await only(world), await only(world, Task)
    code, status, words = told
    assert (sandbox.failure_code.name, sandbox.status.name) == (code, status)
    assert sandbox.failure_message == f"{words} Goodbye."
    assert (task.status.name, task.attempt) == ("PENDING", 1)


async def test_a_machine_that_is_gone_is_told(world, site, outside, started):
    """Whoever removed it."""
    [sandbox] = await started()
    outside.machines.clear()
    await watch.run_once(site)

    sandbox = await only(world)
    assert (sandbox.status.name, sandbox.failure_message) == ("LOST", "Its machine is gone.")


async def test_a_machine_that_comes_after_the_list_is_not_lost(world, ada, apollo, site, outside):
    """The provider's list may be older than the row that is read after it."""
    await queued(ada, apollo)
    await dispatch.run_once(site)
    outside.on_list = lambda _: launched(site)
    await watch.run_once(site)
    assert (await only(world)).status.name == "STARTING"


async def test_a_finished_one_makes_room(world, site, outside, started):
    """Its machine is deleted, the row says since when, and what its worker wrote last is kept."""
    [sandbox] = await started()
    outside.logs[sandbox.name] = "It is done.\n"
    await finished(world, sandbox)
    await watch.run_once(site)

    assert (outside.deleted, outside.machines) == ([sandbox.name], {})
    assert (await only(world)).gone_at is not None
    assert await kept_log(world, sandbox) == "It is done."
    await watch.run_once(site)
    assert outside.deleted == [sandbox.name]


@pytest.mark.parametrize("reported", [True, False])
async def test_what_it_wrote_holds_no_secret(world, site, outside, started, reported):
    """Neither the kept log nor the reason of an end, and a character that no row can hold stops nothing."""
    [sandbox] = await started()
    token = site.keys.sandbox_token(sandbox.id, sandbox.attempt)
    outside.logs[sandbox.name] = f"It is \0 {token}"
    if reported:
        await finished(world, sandbox)
    outside.end(sandbox.name, exit_code=1)
    await watch.run_once(site)
    await watch.run_once(site)

    message = (await only(world)).failure_message
    assert await kept_log(world, sandbox) == "It is \ufffd •••"
    assert message == (None if reported else "The worker ended without a report (exit code 1). It is \ufffd •••")


async def test_who_does_not_stop_is_stopped(world, ada, site, outside, started, later):
    """A wish to stop becomes a kill when its time is over, and not before."""
    [sandbox] = await started()
    await ada.do("cancelTask", "task { id }", taskId=ids.encode("task", sandbox.task_id), reason="Enough.")
    with later("29 seconds"):
        await watch.run_once(site)
    assert ((await only(world)).status.name, outside.deleted) == ("STOPPING", [])

    with later("31 seconds"):
        await watch.run_once(site)
        await watch.run_once(site)
    sandbox = await only(world)
    assert (sandbox.status.name, sandbox.failure_message) == ("CANCELLED", "Enough.")
    assert outside.deleted == [sandbox.name]


async def test_a_machine_keeps_its_lease(world, site, outside, started, later):
    """The provider vouches for it, so a worker that is cut off is not lost; it is written down only when needed."""
    [before] = await started()
    with later("40 seconds"):
        await watch.run_once(site)
        assert (await only(world)).lease_until == before.lease_until
    with later("80 seconds"):
        await watch.run_once(site)
        renewed = (await only(world)).lease_until
    assert 79 <= (renewed - before.lease_until).total_seconds() <= 90


async def test_one_that_cannot_be_deleted_holds_no_other_back(world, site, outside, started):
    """The others are seen to in the same turn, and it is tried again in the next."""
    first, second = await started(2)
    await finished(world, first)
    await finished(world, second)

    async def stuck(name):
        if name == first.name:
            raise ProviderError("It does not answer.")

    outside.on_delete = stuck
    await watch.run_once(site)
    assert [sandbox.gone_at is None for sandbox in await rows(world)] == [True, False]

    outside.on_delete = nothing
    await watch.run_once(site)
    assert [sandbox.gone_at is None for sandbox in await rows(world)] == [False, False]


@pytest.mark.parametrize("reported", [True, False])
async def test_a_log_that_cannot_be_read_keeps_no_machine(world, site, outside, started, reported):
    """The end is told and the machine is deleted all the same; what is kept says why there is no log."""
    [sandbox] = await started()
    outside.on_log = raising(ProviderError("It is torn."))
    if reported:
        await finished(world, sandbox)
    outside.end(sandbox.name, exit_code=1)
    await watch.run_once(site)
    await watch.run_once(site)

    assert (outside.deleted, (await only(world)).gone_at is not None) == ([sandbox.name], True)
    assert await kept_log(world, sandbox) == "Its log could not be read: It is torn."
    assert ((await only(world)).failure_message or "").endswith("" if reported else "It is torn.")


async def test_a_row_in_other_hands_waits_for_its_turn(world, site, outside, started, later):
    """Who changes one row holds up no other, and no two who renew many wait for each other."""
    first, second = await started(2)
    with later("80 seconds"):
        async with begin(world) as tx:
            await sandboxes.lock(tx.session, first.id)
            await watch.run_once(site)
        renewed = [
            one.lease_until > before.lease_until for one, before in zip(await rows(world), (first, second), strict=True)
        ]
        assert renewed == [False, True]
        await watch.run_once(site)
    assert (await rows(world))[0].lease_until > first.lease_until


async def test_a_real_end_is_seen(world, ada, apollo, monkeypatch):
    """A worker that dies in a box of this machine: told with its last words, and no trace of it is left."""
    with short_folder() as folder:
        provider = LocalProvider(folder / "s", deployment=world.server.services.fleet.deployment, machines=4)
        site = site_of(world, provider, machines=4)
        monkeypatch.setattr("orchestrator.orders.worker_archive", b"print('Goodbye.'); raise SystemExit(5)".__bytes__)
        await provider.start(world.url)
        await queued(ada, apollo)
        await dispatch.run_once(site)
        await launched(site)
        await ended(provider, (await only(world)).name)
        await watch.run_once(site)
        await watch.run_once(site)

        sandbox = await only(world)
        assert (sandbox.status.name, "Goodbye." in sandbox.failure_message) == ("LOST", True)
        assert (await kept_log(world, sandbox)).endswith("Goodbye.")
        assert await provider.list() == []
