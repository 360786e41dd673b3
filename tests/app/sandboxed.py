"""Sandboxes as rows, with the token that their worker would hold; no machine runs them."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from app import attempts, auth, ids, transactions
from app.attempts import Fleet
from tests.world import Account, ticket
from tests.world import task as new_task

FLEET = Fleet(provider="nowhere", machines=100, deployment="tests0", life=timedelta(hours=1))


@dataclass
class Worker:
    """Who speaks for one attempt."""

    world: Any
    sandbox: Any
    token: str

    @property
    def bearer(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.token}"}

    async def finish(self) -> None:
        async with transactions.begin(self.world.server.db, None, auth.SYSTEM, request_id="test") as tx:
            await attempts.finish(tx, self.sandbox.id, {"success": True, "summary": "Done."})


async def worker(account: Account, project_id: str) -> Worker:
    """The worker of a new task of this account, given to a sandbox."""
    world = account.world
    made = await new_task(account, (await ticket(account, project_id))["id"])
    async with transactions.begin(world.server.db, None, auth.SYSTEM, request_id="test") as tx:
        sandbox = await attempts.spawn(tx, ids.decode(made["id"])[1], FLEET)
    return Worker(world, sandbox, world.server.keys.sandbox_token(sandbox.id, sandbox.attempt))
