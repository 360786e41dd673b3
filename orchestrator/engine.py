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
BACKOFF_DOUBLINGS = 6  # about a minute
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
            await asyncio.sleep(pause_seconds(loop, failures))

    async def _once(self, loop: Loop) -> str | None:
        started = time.perf_counter()
        error = await self._failure(loop, loop.run_once())
        milliseconds = (time.perf_counter() - started) * 1000
        return await self._failure(loop, self._note(loop, milliseconds, error)) or error

    async def _note(self, loop: Loop, milliseconds: float, error: str | None) -> None:
        async with self._db.writing() as session:
            await health.note_run(session, loop.name, self._process, milliseconds=milliseconds, error=error)

    async def _failure(self, loop: Loop, work: Awaitable[object]) -> str | None:
        """What went wrong, if anything. Everybody may read it in health, so what an exception says stays in the log."""
        try:
            await work
        except AppError as refusal:
            log.warning("loop_failed", loop=loop.name, error=refusal.message)
            return refusal.message
        except Exception as failure:
            # The edge of a loop: said in the log and in health, then tried again.
            log.exception("loop_failed", loop=loop.name)
            return f"{type(failure).__name__}; the log of {self._process} says more."
        return None


def pause_seconds(loop: Loop, failures: int) -> float:
    """Until the loop's next turn: longer after each failure in a row, and never quite as long as elsewhere."""
    pause = BACKOFF_SECONDS * 2 ** min(failures, BACKOFF_DOUBLINGS) if failures else loop.seconds
    return pause * random.uniform(1 - JITTER, 1 + JITTER)  # noqa: S311 - spreads, guards nothing
