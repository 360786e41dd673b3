"""Ask those to stop that fell silent, and those whose time is over."""

from datetime import timedelta

import structlog

from app import messages, sandboxes
from app.enums import FailureCode
from app.models import Sandbox
from orchestrator.site import Site

ROWS_AT_ONCE = 100

log = structlog.get_logger()


async def run_once(site: Site) -> None:
    silence = timedelta(seconds=site.settings.silence_seconds)
    async with site.db.reading() as session:
        silent = await sandboxes.silent(session, silence=silence, limit=ROWS_AT_ONCE)
        overdue = await sandboxes.overdue(session, limit=ROWS_AT_ONCE)
    for sandbox in silent:
        await _stop(site, sandbox, FailureCode.STALLED, f"Nothing has happened in it for {silence}.")
    for sandbox in overdue:
        await _stop(site, sandbox, FailureCode.TIMED_OUT, "The time that a try gets is over.")
    async with site.db.writing() as session:
        await messages.expire(session, limit=ROWS_AT_ONCE)


async def _stop(site: Site, sandbox: Sandbox, code: FailureCode, reason: str) -> None:
    log.warning("sandbox_stopped", sandbox=sandbox.name, code=code.name)
    async with site.change("idle") as tx:
        await sandboxes.stop(tx, sandbox.id, code=code, reason=reason)
