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
from app.bus import Bus
from app.db import Database
from app.errors import AppError
from app.sandboxes import LAUNCH_TOPIC, MACHINES
from app.transactions import WORK
from orchestrator import dispatch, rescue, retention, sweep, watch
from orchestrator.idle import Vigil
from orchestrator.launch import Launcher
from orchestrator.site import Site

BACKOFF_SECONDS = 1.0
BACKOFF_DOUBLINGS = 6  # about a minute
NOTE_SECONDS = 1.0
TURN_SECONDS = 300.0  # then something in it hangs; every turn may be ended anywhere, the next one goes on from the rows
JITTER = 0.1  # share of a pause by which replicas drift apart

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    name: str
    seconds: float  # between two turns
    run_once: Callable[[], Awaitable[object]]
    topic: str = ""  # a ring there is a turn at once


def loops(site: Site, launcher: Launcher) -> Sequence[Loop]:
    return [
        Loop(name="dispatch", seconds=2.0, run_once=lambda: dispatch.run_once(site), topic=WORK),
        Loop(name="launch", seconds=2.0, run_once=launcher.run_once, topic=LAUNCH_TOPIC),
        Loop(name="watch", seconds=2.0, run_once=lambda: watch.run_once(site), topic=MACHINES),
        Loop(name="rescue", seconds=15.0, run_once=lambda: rescue.run_once(site)),
        Loop(name="sweep", seconds=30.0, run_once=lambda: sweep.run_once(site)),
        Loop(name="idle", seconds=15.0, run_once=Vigil(site).run_once),
        Loop(name="retention", seconds=60.0, run_once=lambda: retention.run_once(site.db)),
    ]


@asynccontextmanager
async def running(site: Site) -> AsyncIterator[None]:
    """All loops, from the moment at which the provider is ready. What they started elsewhere goes on after them."""
    await site.provider.start(site.address)
    found = site.provider.capabilities()
    log.info(
        "provider_ready",
        provider=site.provider.name,
        tier=found.tier.name,
        limits=sorted(found.limits),
        note=found.note,
    )
    launcher = Launcher(site)
    try:
        async with Engine(site.db, site.bus, loops(site, launcher)).running():
            yield
    finally:
        await launcher.close()
        await site.provider.close()


class Engine:
    """Runs loops in this process. Every loop is safe in several processes at once, so any number of engines may run."""

    def __init__(self, db: Database, bus: Bus, turning: Sequence[Loop]) -> None:
        self._db = db
        self._bus = bus
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
        notes = Notes()
        with self._bus.listen(loop.topic or f"loop:{loop.name}") as bell:
            while True:
                error = await self._once(loop, notes)
                failures = failures + 1 if error else 0
                pause = pause_seconds(loop, failures)
                await (asyncio.sleep(pause) if failures else bell.wait(pause))

    async def _once(self, loop: Loop, notes: "Notes") -> str | None:
        started = time.perf_counter()
        error = await self._failure(loop, loop.run_once())
        milliseconds = (time.perf_counter() - started) * 1000
        runs = notes.due(error)
        return (await self._failure(loop, self._note(loop, runs, milliseconds, error)) if runs else None) or error

    async def _note(self, loop: Loop, runs: int, milliseconds: float, error: str | None) -> None:
        async with self._db.writing() as session:
            await health.note_run(session, loop.name, self._process, runs=runs, milliseconds=milliseconds, error=error)

    async def _failure(self, loop: Loop, work: Awaitable[object]) -> str | None:
        """What went wrong, if anything. Everybody may read it in health, so what an exception says stays in the log."""
        limit = asyncio.timeout(TURN_SECONDS)
        try:
            async with limit:
                await work
        except AppError as refusal:
            log.warning("loop_failed", loop=loop.name, error=refusal.message)
            return refusal.message
        except Exception as failure:
            # The edge of a loop: said in the log and in health, then tried again.
            log.exception("loop_failed", loop=loop.name)
            what = f"Ended after {TURN_SECONDS:g} seconds" if limit.expired() else type(failure).__name__
            return f"{what}; the log of {self._process} says more."
        return None


class Notes:
    """When a loop's runs are written down: a busy one's once a second, and each failure and its end at once."""

    def __init__(self) -> None:
        self._runs = 0
        self._written = 0.0
        self._error: str | None = None

    def due(self, error: str | None) -> int:
        """How many runs to write down now."""
        self._runs += 1
        now = time.monotonic()
        if now - self._written < NOTE_SECONDS and error == self._error:
            return 0
        runs, self._runs, self._written, self._error = self._runs, 0, now, error
        return runs


def pause_seconds(loop: Loop, failures: int) -> float:
    """Until the loop's next turn: longer after each failure in a row, and never quite as long as elsewhere."""
    pause = BACKOFF_SECONDS * 2 ** min(failures, BACKOFF_DOUBLINGS) if failures else loop.seconds
    return pause * random.uniform(1 - JITTER, 1 + JITTER)  # noqa: S311 - spreads, guards nothing
