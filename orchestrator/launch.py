"""Get machines for sandboxes. Whoever dies in the middle is followed by another process that asks by the same name."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import structlog

from app import attempts, machines, sandboxes
from app.db import DatabaseUnavailable
from app.enums import FailureCode
from app.errors import AppError
from app.models import Sandbox
from orchestrator import orders
from orchestrator.providers import Machine, Order, OrderRefused, ProviderError, ProviderFull
from orchestrator.site import Site

AT_ONCE = 8
FULL_PAUSE_SECONDS = 15.0
START_SECONDS = 900.0  # a provider may have to fetch an image first

log = structlog.get_logger()


class Launcher:
    """Launches go on beside each other, so that a slow machine holds no other back."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._going: dict[UUID, asyncio.Task[None]] = {}

    async def run_once(self) -> int:
        """Say that the launches under way go on, and begin those for which there is room."""
        async with self._site.db.writing() as session:
            if self._going:
                await machines.keep_in_hand(session, list(self._going))
            fleet, room = self._site.fleet, AT_ONCE - len(self._going)
            taken = await machines.to_launch(session, fleet, life=fleet.life, limit=room)
        for sandbox in taken:
            self._going[sandbox.id] = asyncio.create_task(self._launch(sandbox), name=f"launch {sandbox.name}")
        return len(taken)

    async def close(self) -> None:
        for task in self._going.values():
            task.cancel()
        await asyncio.gather(*self._going.values(), return_exceptions=True)

    async def _launch(self, sandbox: Sandbox) -> None:
        try:
            await launch(self._site, sandbox)
        except AppError as error:
            log.warning("launch_interrupted", sandbox=sandbox.name, error=error.message)
        except Exception:
            # The edge of a launch: it is said, and taken up again when its time in this process's hand is over.
            log.exception("launch_interrupted", sandbox=sandbox.name)
        finally:
            self._going.pop(sandbox.id, None)
            self._site.bus.ring(sandboxes.LAUNCH_TOPIC, 0)


async def launch(site: Site, sandbox: Sandbox) -> None:
    """One machine for one sandbox, or the reason why there is none."""
    boot = Boot()
    try:
        with boot.step("order"):
            order = await orders.compose(site, sandbox)
        with boot.step("machine"):
            machine = await _create(site, order)
    except ProviderFull as full:
        async with site.change("launch") as tx:
            await attempts.postpone(tx, sandbox.id, seconds=FULL_PAUSE_SECONDS, message=full.message, boot=boot.steps)
    except DatabaseUnavailable:
        raise  # it is taken up again when the database is back
    except AppError as error:
        await _give_up(site, sandbox, boot, error.message, again=not isinstance(error, OrderRefused))
    except Exception as error:
        # The edge of a launch: what nobody foresaw ends this try, and does not come again and again.
        log.exception("launch_failed", sandbox=sandbox.name)
        await _give_up(site, sandbox, boot, f"Its start failed: {type(error).__name__}.", again=True)
    else:
        async with site.change("launch") as tx:
            await sandboxes.launched(tx, sandbox, provider_id=machine.provider_id, boot=boot.steps)
        log.info("sandbox_launched", sandbox=sandbox.name, milliseconds=boot.milliseconds)


async def _create(site: Site, order: Order) -> Machine:
    try:
        async with asyncio.timeout(START_SECONDS) as limit:
            return await site.provider.create(order)
    except TimeoutError as error:
        if limit.expired():
            raise ProviderError(f"Its machine did not start within {START_SECONDS:g} seconds.") from error
        raise


async def _give_up(site: Site, sandbox: Sandbox, boot: "Boot", why: str, *, again: bool) -> None:
    log.warning("sandbox_not_launched", sandbox=sandbox.name, why=why)
    async with site.change("launch") as tx:
        await sandboxes.note_boot(tx.session, sandbox.id, boot.steps)
        await attempts.lose(tx, sandbox.id, FailureCode.SPAWN_FAILED, why, again=again)


class Boot:
    """The steps of a start with their times, so that a slow or failed one says why."""

    def __init__(self) -> None:
        self.steps: list[dict[str, Any]] = []
        self._began = time.perf_counter()

    @property
    def milliseconds(self) -> int:
        return round((time.perf_counter() - self._began) * 1000)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        step: dict[str, Any] = {"name": name, "startedAt": _now(), "finishedAt": None, "error": None}
        self.steps.append(step)
        try:
            yield
        except AppError as error:
            step["error"] = error.message
            raise
        finally:
            step["finishedAt"] = _now()


def _now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")
