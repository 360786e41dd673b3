"""Workers for tests: small programs that say in the log what they find, and how a test waits for that."""

import contextlib
import itertools
import json
import os
import textwrap
from dataclasses import dataclass
from pathlib import Path

from orchestrator.providers import Machine, MachineState, Order, Provider
from tests.servers import until

_numbers = itertools.count(1)

WAITS = "import time\nprint('up', flush=True)\ntime.sleep(3600)"
LEAVES_CHILDREN = """
    import os, subprocess, time
    for words in (["setsid"], ["nohup"], ["setsid", "nohup"], ["setsid", "setsid"]):
        subprocess.Popen([*words, "sleep", "{seconds}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    if os.fork() == 0 and os.setsid() is None and os.fork() == 0:
        os.execvp("sleep", ["sleep", "{seconds}"])
    print("up", flush=True)
    time.sleep(3600)
"""


def order(worker: str = WAITS, *, name: str = "", files: dict | None = None, labels: dict | None = None, **given):
    """An order for a worker that is this program; each has a name of its own on this machine."""
    program = textwrap.dedent(worker).strip().encode()
    return Order(
        name=name or f"omoi-test-{os.getpid()}-{next(_numbers)}",
        labels={"deployment": "test"} if labels is None else labels,
        env=given.pop("env", {}),
        files={"worker.pyz": program, **(files or {})},
        **given,
    )


@dataclass
class Outcome:
    machine: Machine
    lines: list[str]

    @property
    def said(self):
        """What the worker printed as its one line of JSON."""
        [line] = [line for line in self.lines if line.startswith(("{", "[", '"'))]
        return json.loads(line)


async def outcome(provider: Provider, ordered: Order, seconds: float = 20) -> Outcome:
    """Run it to its end, and delete it."""
    async with running(provider, ordered):
        machine = await ended(provider, ordered.name, seconds)
        return Outcome(machine, (await provider.log(ordered.name, 1000)).splitlines())


async def ended(provider: Provider, name: str, seconds: float = 20) -> Machine:
    async def has_ended():
        return (await provider.get(name)).state is MachineState.ENDED

    await until(has_ended, seconds)
    return await provider.get(name)


async def says(provider: Provider, name: str, words: str) -> None:
    async def is_there():
        return words in await provider.log(name, 1000)

    await until(is_there)


@contextlib.asynccontextmanager
async def running(provider: Provider, ordered: Order):
    machine = await provider.create(ordered)
    try:
        yield machine
    finally:
        await provider.delete(ordered.name)


def unmistakable_seconds() -> str:
    """How long a process sleeps that is ours and of this test alone."""
    return f"{100_000 + os.getpid()}.{next(_numbers)}"


def running_with(words: str) -> list[int]:
    """Every process on this machine that has this word among its arguments."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if words.encode() in (path / "cmdline").read_bytes().split(b"\0"):
                found.append(int(path.name))
    return found
