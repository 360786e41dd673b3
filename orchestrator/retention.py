"""Forget what is kept for a time only: idempotency keys, ended sessions, runs of processes that are gone."""

import structlog

from app import health, idempotency, tokens
from app.db import Database

ROWS_AT_ONCE = 1_000

log = structlog.get_logger()


async def run_once(db: Database) -> int:
    """Delete what is old, a bounded number in each transaction; returns how many rows went."""
    total = 0
    for forget in (idempotency.forget_old, tokens.forget_ended):
        while True:
            async with db.writing() as session:
                gone = await forget(session, limit=ROWS_AT_ONCE)
            total += gone
            if gone < ROWS_AT_ONCE:
                break
    async with db.writing() as session:
        await health.forget_old_runs(session)
    if total:
        log.info("old_rows_forgotten", rows=total)
    return total
