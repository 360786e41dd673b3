"""Take tasks out of sandboxes for which nobody vouches any more: no worker, and no provider."""

import structlog

from app import attempts, machines, sandboxes
from app.enums import FailureCode
from app.models import Sandbox
from orchestrator.providers import MachineState
from orchestrator.site import Site

ROWS_AT_ONCE = 100

log = structlog.get_logger()


async def run_once(site: Site) -> int:
    """Leases that are over. A machine that still runs is asked for first: a worker may be cut off and yet at work."""
    async with site.db.reading() as session:
        expired = await machines.expired(session, site.fleet, limit=ROWS_AT_ONCE)
    return sum([await _rescue(site, sandbox) for sandbox in expired]) + await _bury(site)


async def _rescue(site: Site, sandbox: Sandbox) -> bool:
    machine = await site.provider.get(sandbox.name)
    if machine is not None and machine.state is not MachineState.ENDED:
        async with site.db.writing() as session:
            await machines.alive(session, [sandbox.name])
        return False
    log.warning("sandbox_lost", sandbox=sandbox.name)
    async with site.change("rescue") as tx:
        message = "Its lease was over: neither its worker nor its provider was heard of."
        return await attempts.lose(tx, sandbox.id, FailureCode.SANDBOX_LOST, message, only_expired=True)


async def _bury(site: Site) -> int:
    """What was on a machine that does not come back. If it does, its own sweep finds what is left there."""
    async with site.db.reading() as session:
        abandoned = await machines.abandoned(session, site.fleet, limit=ROWS_AT_ONCE)
    lost = 0
    for sandbox in abandoned:
        log.warning("sandbox_abandoned", sandbox=sandbox.name, place=sandbox.place)
        async with site.change("rescue") as tx:
            message = "The machine on which it ran was not heard of any more."
            lost += await attempts.lose(tx, sandbox.id, FailureCode.SANDBOX_LOST, message, only_expired=True)
            await sandboxes.gone(tx, sandbox.id, log=None)
    return lost
