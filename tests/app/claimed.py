"""Tasks whose sandboxes have rows, and workers' tokens, but no machines: for tests of what a worker asks for."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import update

from app import attempts, auth, ids, transactions
from app.attempts import Fleet
from app.enums import FailureCode
from app.models import Sandbox
from tests import world as w
from tests.world import World

FLEET = Fleet(provider="nowhere", machines=1_000, deployment="tests", life=timedelta(hours=1))


@dataclass
class Box:
    """The sandbox of one task, as the server knows it."""

    world: World
    sandbox: Sandbox  # as it was claimed
    task: str
    ticket: str
    token: str

    @property
    def id(self) -> UUID:
        return self.sandbox.id

    @property
    def bearer(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.token}"}

    async def read(self) -> Sandbox:
        async with self.world.server.db.reading() as session:
            return await session.get_one(Sandbox, self.id)

    async def write(self, **values: Any) -> None:
        async with self.world.server.db.writing() as session:
            await session.execute(update(Sandbox).where(Sandbox.id == self.id).values(**values))

    async def finish(self) -> None:
        """Its worker says that all is well."""
        async with begin(self.world) as tx:
            await attempts.finish(tx, self.id, {"success": True, "summary": "Done."})

    async def end(self) -> None:
        """Its worker was never heard of again."""
        async with begin(self.world) as tx:
            await attempts.lose(tx, self.id, FailureCode.SANDBOX_LOST, "It vanished.")


def begin(world: World) -> Any:
    return transactions.begin(world.server.db, world.server.bus, auth.SYSTEM, request_id="test")


async def box(account: Any, project_id: str, *, branch: str | None = None, ticket: str | None = None) -> Box:
    """A new task, claimed at once."""
    ticket = ticket or (await w.ticket(account, project_id))["id"]
    task = (await w.task(account, ticket))["id"]
    async with begin(account.world) as tx:
        [sandbox] = await attempts.claim(tx, FLEET, only=ids.require(task, "task"))
    token = account.world.server.keys.sandbox_token(sandbox.id, sandbox.attempt)
    claimed = Box(account.world, sandbox, task, ticket, token)
    if branch:
        await claimed.write(branch=branch)
    return claimed
