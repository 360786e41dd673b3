"""The programs of this folder as a test has them: started with an order, asked while they work, and ended."""

import asyncio
import contextlib
import json
import sys
from asyncio.subprocess import PIPE, Process
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.servers import until

FOLDER = Path(__file__).parents[2]
LINE_BYTES = 1 << 24


@dataclass
class Crowd:
    """Subscribers, and what they say of themselves."""

    process: Process

    async def ask(self, word: str) -> Any:
        self.process.stdin.write(f"{word}\n".encode())
        line = await self.process.stdout.readline()
        assert line, "the subscribers have ended"
        return json.loads(line)

    async def ready(self) -> None:
        await until(lambda: self.ask("ready"), seconds=60)

    async def satisfied(self, seconds: float = 60) -> None:
        await until(lambda: self.ask("satisfied"), seconds)

    async def told(self, logs: int, *, who: str = "all", seconds: float = 60) -> None:
        """Wait until each of them was told so many remarks."""

        async def has() -> bool:
            await asyncio.sleep(0.1)  # both processors have better things to do than to answer this
            return (await self.ask("count"))[who] >= logs

        await until(has, seconds)

    async def hurry(self) -> None:
        await self.ask("hurry")

    async def accounts(self) -> list[dict]:
        return await self.ask("accounts")


@dataclass
class Reporting:
    """Workers, and how much was acknowledged so far."""

    process: Process
    acknowledged: int = 0
    met: dict[str, int] = field(default_factory=dict)  # at their end: how often what happened
    over: asyncio.Event = field(default_factory=asyncio.Event)

    async def listen(self) -> None:
        async for line in self.process.stdout:
            said = json.loads(line)
            if isinstance(said, int):
                self.acknowledged = said
            else:
                self.met = said
        self.over.set()

    async def reach(self, acknowledged: int, seconds: float = 60) -> None:
        await until(lambda: self.over.is_set() or self.acknowledged >= acknowledged, seconds)

    async def ended(self, seconds: float = 60) -> None:
        async with asyncio.timeout(seconds):
            assert await self.process.wait() == 0, "a worker was told what may not be"
            await self.over.wait()


@contextlib.asynccontextmanager
async def subscribers(**order: Any):
    async with _program("subscribers", order) as process:
        yield Crowd(process)


@contextlib.asynccontextmanager
async def reporters(**order: Any):
    async with _program("reporters", order) as process:
        reporting = Reporting(process)
        listening = asyncio.create_task(reporting.listen())
        try:
            yield reporting
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)


@contextlib.asynccontextmanager
async def _program(name: str, order: dict[str, Any]):
    command = [sys.executable, "-m", f"tests.load.{name}", json.dumps(order)]
    process = await asyncio.create_subprocess_exec(*command, cwd=FOLDER, stdin=PIPE, stdout=PIPE, limit=LINE_BYTES)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()
