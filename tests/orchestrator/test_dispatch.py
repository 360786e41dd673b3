"""Dispatch: rows for what may start now, once each, from however many dispatchers."""

import asyncio

import pytest

from app import ids, sandboxes
from app.models import Task, Ticket
from orchestrator import dispatch
from tests.app.browser import sql
from tests.orchestrator.outside import Outside, only, queued, rows, site_of
from tests.world import World


async def test_a_task_is_given_to_a_row(world, ada, apollo, site, outside):
    """The row is there, with its name and what it wants, before the provider has been asked for anything."""
    [task] = await queued(ada, apollo)

    assert await dispatch.run_once(site) == 1
    sandbox = await only(world)
    assert (sandbox.status.name, sandbox.attempt, sandbox.provider) == ("PROVISIONING", 1, "outside")
    assert sandbox.name.startswith(f"omoi-{site.fleet.deployment}-")
    assert (sandbox.task_id, (await only(world, Task)).status.name) == (ids.decode(task)[1], "ASSIGNED")
    assert (await only(world, Ticket)).status.name == "IN_PROGRESS"
    assert outside.orders == []


async def test_it_is_told_and_rung(world, ada, apollo, site):
    """Whoever follows the project or the sandbox sees it, and the launchers wake."""
    await queued(ada, apollo)
    with world.server.bus.listen(sandboxes.LAUNCH_TOPIC) as bell:
        await dispatch.run_once(site)
        await bell.wait(10)

    sandbox = await only(world)
    answer = await ada(
        """query($id: ID!, $box: ID!) { project(id: $id) { activity(first: 50) { nodes { verb } } }
           sandbox(id: $box) { events(first: 5) { nodes { type payload } } } }""",
        id=apollo,
        box=ids.encode("sandbox", sandbox.id),
    )
    assert "task.assigned" in str(answer.data)
    [event] = answer.data["sandbox"]["events"]["nodes"]
    assert (event["type"], event["payload"]["status"]) == ("SANDBOX_STATUS", "PROVISIONING")


async def test_it_goes_on_until_the_queue_is_empty(world, ada, apollo, site):
    """However many may start: one run gives all of them away, a bounded number in each transaction."""
    await ada.do("updateProject", "project { id }", projectId=apollo, settings={"concurrency": 1_000})
    await queued(ada, apollo)
    await sql(
        world,
        """INSERT INTO tasks (id, project_id, ticket_id, title, description, phase, status, priority, attempt,
                              max_attempts, resume)
           SELECT gen_random_uuid(), project_id, ticket_id, title, '', phase, status, priority, 0, 3, false
           FROM tasks, generate_series(1, 119)""",
    )

    assert await dispatch.run_once(site_of(world, Outside(), machines=500)) == 120
    assert await dispatch.run_once(site) == 0


@pytest.mark.parametrize(("places", "machines", "given"), [(5, 100, 5), (1_000, 7, 7)])
async def test_two_dispatchers_pass_no_limit(world, ada, apollo, places, machines, given):
    """Servers that hand out work at the same time give no task away twice, and no place."""
    await ada.do("updateProject", "project { id }", projectId=apollo, settings={"concurrency": places})
    await queued(ada, apollo, 12)

    async with World(world.settings, world.database_url).running() as other:
        sites = [site_of(one, Outside(), machines=machines) for one in (world, other)]
        await asyncio.gather(*(dispatch.run_once(site) for site in sites * 4))

    made = await rows(world)
    assert len(made) == len({sandbox.task_id for sandbox in made}) == given
