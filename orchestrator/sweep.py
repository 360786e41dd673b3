"""Delete machines of this installation that no sandbox owns, whoever left them behind."""

import random

import structlog

from app import machines
from orchestrator.providers import ProviderError
from orchestrator.site import Site

MOST = 20  # in one sweep

log = structlog.get_logger()


async def run_once(site: Site) -> int:
    """The provider is listed first: a row commits before its machine is asked for, so what has none is an orphan."""
    found = await site.provider.list()
    if not found:
        return 0
    async with site.db.reading() as session:
        owned = await machines.owning(session, [machine.name for machine in found])
    orphans = [machine.name for machine in found if machine.name not in owned]
    if len(orphans) > MOST:  # those that cannot be deleted shall not keep the others waiting for ever
        orphans = random.sample(orphans, MOST)
    deleted = 0
    for name in orphans:
        async with site.db.reading() as session:
            if await machines.owning(session, [name]):
                continue
        try:
            await site.provider.delete(name)
        except ProviderError as error:  # the others do not wait for this one
            log.warning("orphan_not_deleted", machine=name, error=error.message)
            continue
        log.warning("orphan_deleted", machine=name)
        deleted += 1
    return deleted
