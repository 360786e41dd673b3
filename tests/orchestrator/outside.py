"""A provider elsewhere, for the tests of the loops: its machines do what a test says."""

import asyncio
import dataclasses
from collections.abc import Callable

from sqlalchemy import select

from app.models import Sandbox
from orchestrator.launch import Launcher
from orchestrator.providers import Capabilities, Machine, MachineState, Tier
from orchestrator.site import Site
from tests import world as w
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
        self.on_log: Callable = nothing

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
        await self.on_log(name)
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


async def launched(site) -> None:
    """All that wants a machine is asked for, and answered."""
    launcher = Launcher(site)
    await launcher.run_once()
    await asyncio.gather(*launcher._going.values())


def raising(error):
    async def refuse(name):
        raise error

    return refuse
