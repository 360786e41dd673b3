"""Hand out tasks: each one whose turn it is gets a sandbox row, before anything outside is asked for."""

import structlog

from app import attempts
from orchestrator.site import Site

log = structlog.get_logger()


async def run_once(site: Site) -> int:
    """Claim until nothing more is due or there is no room; returns how many tasks were given away."""
    total = 0
    while True:
        async with site.change("dispatch") as tx:
            given = await attempts.claim(tx, site.fleet)
        for sandbox in given:
            log.info("task_assigned", task=str(sandbox.task_id), sandbox=sandbox.name, attempt=sandbox.attempt)
        total += len(given)
        if len(given) < attempts.CLAIMS:
            return total
