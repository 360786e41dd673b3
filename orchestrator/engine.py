"""The clock of the orchestrator: it runs each loop again and again, and none of them dies silently."""

import asyncio
import os
import random
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import structlog

from app import health
from app.db import Database
from app.errors import AppError
from orchestrator import retention

BACKOFF_SECONDS = 1.0
BACKOFF_LIMIT_SECONDS = 60.0
JITTER = 0.1  # share of a pause by which replicas drift apart

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    name: str
    seconds: float  # between two turns
    run_once: Callable[[], Awaitable[object]]


def loops(db: Database) -> Sequence[Loop]:
    return [Loop(name="retention", seconds=60.0, run_once=lambda: retention.run_once(db))]


class Engine:
    """Runs loops in this process. Every loop is safe in several processes at once, so any number of engines may run."""

    def __init__(self, db: Database, turning: Sequence[Loop]) -> None:
        self._db = db
        self._loops = turning
        self._process = f"{socket.gethostname()}:{os.getpid()}"

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(self._turn(loop), name=f"loop {loop.name}") for loop in self._loops]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _turn(self, loop: Loop) -> None:
        failures = 0
        while True:
            error = await self._once(loop)
            failures = failures + 1 if error else 0
            pause = min(BACKOFF_SECONDS * 2**failures, BACKOFF_LIMIT_SECONDS) if failures else loop.seconds
            await asyncio.sleep(pause * random.uniform(1 - JITTER, 1 + JITTER))  # noqa: S311 - spreads, guards nothing

    async def _once(self, loop: Loop) -> str | None:
        started, error = time.perf_counter(), None
        try:
            await loop.run_once()
        except Exception as failure:  # noqa: BLE001 - the edge of a loop: said in the log and in health, then tried again
            error = failure.message if isinstance(failure, AppError) else f"{type(failure).__name__}: {failure}"
            log.warning("loop_failed", loop=loop.name, error=error)
        milliseconds = (time.perf_counter() - started) * 1000
        try:
            async with self._db.writing() as session:
                await health.note_run(session, loop.name, self._process, milliseconds=milliseconds, error=error)
        except AppError:  # the database is away, which the loop has said already
            error = error or "The run could not be noted."
        return error
