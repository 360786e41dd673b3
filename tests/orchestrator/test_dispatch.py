"""Dispatch: rows for what may start now, once each, from however many dispatchers; and the provider of these tests."""

import asyncio
import dataclasses
from collections.abc import Callable

import pytest
from sqlalchemy import select

from app import ids, sandboxes
from app.models import Sandbox, Task, Ticket
from orchestrator import dispatch
from orchestrator.providers import Capabilities, Machine, MachineState, Tier
from orchestrator.site import Site
from tests import world as w
from tests.app.browser import sql
from tests.world import World

FULL_HOUSE = 100


async def nothing(name: str) -> None:
    """What happens at a provider besides what it is asked for."""


class Outside:
    """A provider elsewhere: a test says what its machines do, and what happens while it is asked."""

    name = "outside"

    def __init__(self) -> None:
        self.machines: dict[str, Machine] = {}
        self.orders: list = []
        self.logs: dict[str, str] = {}
        self.deleted: list[str] = []
        self.on_create: Callable = nothing
        self.on_get: Callable = nothing
        self.on_list: Callable = nothing
        self.on_delete: Callable = nothing

    async def start(self, server_address):
        pass

    async def close(self):
        pass

    def capabilities(self):
        return Capabilities(
            tier=Tier.REMOTE, callback_url="https://omoi.example", limits=frozenset(), machines=FULL_HOUSE
        )

    async def create(self, order):
        self.orders.append(order)
        await self.on_create(order.name)
        return self.put(order.name, order.labels)

    async def get(self, name):
        await self.on_get(name)
        return self.machines.get(name)

    async def list(self):
        found = list(self.machines.values())
        await self.on_list("")
        return found

    async def delete(self, name):
        await self.on_delete(name)
        self.deleted.append(name)
        self.machines.pop(name, None)

    async def log(self, name, lines):
        return "\n".join(self.logs.get(name, "").splitlines()[-lines:])

    def put(self, name, labels=None) -> Machine:
        """A machine of this name runs, now or since long."""
        made = Machine(name=name, provider_id=f"id of {name}", labels=labels or {}, state=MachineState.RUNNING)
        return self.machines.setdefault(name, made)

    def end(self, name, **how) -> None:
        """Its worker has ended, in this way."""
        self.machines[name] = dataclasses.replace(self.machines[name], state=MachineState.ENDED, **how)


def site_of(world: World, provider, *, machines: int = FULL_HOUSE) -> Site:
    """What the loops of this world work with, when this is its provider."""
    site = world.server._site(world.server.services.fleet.deployment)
    fleet = dataclasses.replace(site.fleet, provider=provider.name, machines=machines)
    return dataclasses.replace(site, provider=provider, fleet=fleet)


async def rows(world: World, kind=Sandbox) -> list:
    """All sandboxes, or all rows of another kind, the oldest first."""
    async with world.server.db.reading() as session:
        return list(await session.scalars(select(kind).order_by(kind.id)))


async def only(world: World, kind=Sandbox):
    [row] = await rows(world, kind)
    return row


async def queued(ada, project_id, count=1, **given) -> list[str]:
    """So many tasks in one ticket, which is READY."""
    ticket = (await w.ticket(ada, project_id))["id"]
    await ada.do("moveTicket", "ticket { id }", ticketId=ticket, status="READY")
    return [(await w.task(ada, ticket, title=f"Task {n}", **given))["id"] for n in range(count)]


@pytest.fixture
def outside():
    return Outside()


@pytest.fixture
def site(world, outside):
    return site_of(world, outside)


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
