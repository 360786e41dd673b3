"""Writes down what calls of the model use, while they flow and at their end: every token once."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
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
            await asyncio.wait(self.writing, timeout=LAST_SECONDS)

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
        self._task: asyncio.Task[None] | None = None
        self._closed = False

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
        if self._task is None and self.meter.usage != self._written:
            self._task = asyncio.create_task(self._write_all())
            self._ledger.writing.add(self._task)
            self._task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._ledger.writing.discard(task)
        self._task = None

    async def _write_all(self) -> None:
        """One part; behind the end of the answer, until nothing is owed."""
        failures = 0
        while self.meter.usage != self._written:
            written = await self._write_part()
            if not self._closed:
                return
            if not written:
                failures += 1
                if failures == TRIES:
                    log.error("usage_lost", sandbox=str(self._sandbox_id))
                    return
                await asyncio.sleep(PAUSE_SECONDS)

    async def _write_part(self) -> bool:
        used, ledger = self.meter.usage, self._ledger
        cost = prices.cost_micro_usd(self.meter.model, used)
        try:
            async with transactions.begin(ledger.db, ledger.bus, auth.SYSTEM, request_id="gateway") as tx:
                await usage.add(tx, self._sandbox_id, used - self._written, cost - self._written_micro_usd)
                await budgets.warn(tx, self._sandbox_id)
        except DatabaseUnavailable:
            return False
        self._written, self._written_micro_usd = used, cost
        return True
