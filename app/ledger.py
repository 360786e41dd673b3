"""Writes down what calls of the model use, while they flow and at their end: every token once."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from uuid import UUID

import structlog

from app import auth, budgets, prices, transactions, usage
from app.bus import Bus
from app.db import Database, DatabaseUnavailable
from app.metering import Meter
from app.prices import Tokens

PART_SECONDS = 1.0  # between two parts of a long answer
SETTLED_SECONDS = 1.0  # how long the end of an answer waits for its usage to be written down
TRIES = 300
PAUSE_SECONDS = 1.0
LAST_SECONDS = 5.0

log = structlog.get_logger()


class Ledger:
    def __init__(self, db: Database, bus: Bus) -> None:
        self.db = db
        self.bus = bus
        self.writing: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """At its end what was used is written down, as far as the time allows."""
        yield
        if self.writing:
            _, late = await asyncio.wait(self.writing, timeout=LAST_SECONDS)
            if late:
                log.error("usage_lost", answers=len(late))

    def open(self, sandbox_id: UUID) -> "Tab":
        return Tab(self, sandbox_id)


class Tab:
    """Of one answer. What it owes is what its meter says now, less what was written down before: it may be negative,
    when the answer's own count in the end is smaller than what was estimated on the way.
    """

    def __init__(self, ledger: Ledger, sandbox_id: UUID) -> None:
        self.meter = Meter()
        self._ledger = ledger
        self._sandbox_id = sandbox_id
        self._written = Tokens()
        self._written_micro_usd = 0
        self._due = time.monotonic() + PART_SECONDS
        self._task: asyncio.Task[None] | None = None  # the last one: of a part, or of the end
        self._closed = False
        self._faulty = False  # and this was said

    def feed(self, chunk: bytes) -> None:
        """Nobody waits for the database: what cannot be written now is written with the next part."""
        self.meter.feed(chunk)
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + PART_SECONDS
            self._write()

    async def close(self) -> None:
        """No more comes. The next call finds what this one used; when the database is away, it does not wait."""
        self._closed = True
        self._write()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=SETTLED_SECONDS)

    def _write(self) -> None:
        if self.meter.usage == self._written or (self._task is not None and not self._task.done()):
            return
        self._task = asyncio.create_task(self._write_all())
        self._ledger.writing.add(self._task)
        self._task.add_done_callback(self._ledger.writing.discard)

    async def _write_all(self) -> None:
        """One part; behind the end of the answer, until nothing is owed."""
        for _ in range(TRIES):
            written = await self._write_part()
            if not self._closed or self.meter.usage == self._written:
                return
            if not written:
                await asyncio.sleep(PAUSE_SECONDS)
        owed = self.meter.usage - self._written
        log.error("usage_lost", sandbox=str(self._sandbox_id), **asdict(owed))

    async def _write_part(self) -> bool:
        """False: not now."""
        used = self.meter.usage
        cost = prices.cost_micro_usd(self.meter.model, used)
        try:
            await self._add(used - self._written, cost - self._written_micro_usd)
        except DatabaseUnavailable:
            return False
        except Exception:
            # The edge of a task that nobody waits for: what was used is not forgotten for it; said once an answer.
            if not self._faulty:
                log.exception("usage_not_written", sandbox=str(self._sandbox_id))
            self._faulty = True
            return False
        self._written, self._written_micro_usd = used, cost
        return True

    async def _add(self, tokens: Tokens, cost_micro_usd: int) -> None:
        ledger = self._ledger
        async with transactions.begin(ledger.db, ledger.bus, auth.SYSTEM, request_id="gateway") as tx:
            await usage.add(tx, self._sandbox_id, tokens, cost_micro_usd)
            await budgets.warn(tx, self._sandbox_id)
