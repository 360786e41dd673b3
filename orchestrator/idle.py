"""Ask those to stop that fell silent, and those whose time is over."""

from datetime import datetime, timedelta

import structlog

from app import clock, messages, patience
from orchestrator.site import Site

ROWS_AT_ONCE = 100
BREAK = timedelta(minutes=2)  # so long after the last turn nobody knows what workers could say meanwhile

log = structlog.get_logger()


class Vigil:
    """Listens to the silence. While the server is away, or its machine sleeps, silence says nothing about workers."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._listening: datetime | None = None  # since then, by the database's clock
        self._last: datetime | None = None

    async def run_once(self) -> None:
        silence = timedelta(seconds=self._site.settings.silence_seconds)
        for reason in patience.reasons(silence, listening=await self._since()):
            await self._stop(reason)
        async with self._site.db.writing() as session:
            await messages.expire(session, limit=ROWS_AT_ONCE)

    async def _since(self) -> datetime:
        async with self._site.db.reading() as session:
            now = await clock.read(session)
        if self._listening is None or self._last is None or now - self._last > BREAK:
            self._listening = now
        self._last = now
        return self._listening

    async def _stop(self, reason: patience.Reason) -> None:
        async with self._site.db.reading() as session:
            found = await patience.found(session, reason, limit=ROWS_AT_ONCE)
        for sandbox_id in found:
            async with self._site.change("idle") as tx:
                stopped = await patience.stop(tx, sandbox_id, reason)
            if stopped is not None:
                log.warning("sandbox_stopped", sandbox=stopped.name, code=reason.code.name, why=reason.sentence)
