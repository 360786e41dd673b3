"""Take tasks out of sandboxes for which nobody vouches any more: no worker, and no provider."""

import structlog

from app import attempts, sandboxes
from app.enums import FailureCode
from orchestrator.providers import MachineState
from orchestrator.site import Site

ROWS_AT_ONCE = 100

log = structlog.get_logger()


async def run_once(site: Site) -> int:
    """Leases that are over. A machine that still runs is asked for first: a worker may be cut off and yet at work."""
    async with site.db.reading() as session:
        expired = await sandboxes.expired(session, provider=site.provider.name, limit=ROWS_AT_ONCE)
    lost = 0
    for sandbox in expired:
        machine = await site.provider.get(sandbox.name)
        if machine is not None and machine.state is not MachineState.ENDED:
            async with site.db.writing() as session:
                await sandboxes.alive(session, [sandbox.name])
            continue
        log.warning("sandbox_lost", sandbox=sandbox.name)
        async with site.change("rescue") as tx:
            message = "Its lease was over: neither its worker nor its provider was heard of."
            lost += await attempts.lose(tx, sandbox.id, FailureCode.SANDBOX_LOST, message, only_expired=True)
    return lost
