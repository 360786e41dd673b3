"""How a sandbox of this machine goes: its processes first, then its control groups, then its files."""

import asyncio
import contextlib
import signal
import time
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

from orchestrator.providers import ProviderError
from orchestrator.providers.local import folder as folders
from orchestrator.providers.local import limits, processes
from orchestrator.providers.local.folder import Folder
from orchestrator.providers.local.processes import Process

STOP_SECONDS = 5.0  # for the keeper to end its box, before it is ended with it
GONE_SECONDS = 10.0
POLL_SECONDS = 0.01
GONE = ".gone-"
NEW = ".new-"
TRIAL = ".try-"
LOCK = ".lock"


@contextlib.asynccontextmanager
async def alone(root: Path, name: str) -> AsyncIterator[None]:
    """One at a time makes or unmakes what has this name, in whichever process. Who dies holds it no longer."""
    with contextlib.ExitStack() as stack:
        while not folders.hold(_lock(root, name), stack):  # noqa: ASYNC110 - a lock tells nobody that it is free
            await asyncio.sleep(POLL_SECONDS)
        yield


async def remove(folder: Folder) -> None:
    """End all that runs in it, then remove every trace. Its files are there as long as a process of it may be."""
    if not folder.path.exists():
        return
    await _end(folder)
    aside = folder.path.with_name(f"{GONE}{folder.path.name}-{time.time_ns()}")
    folder.path.rename(aside)  # at once: half of it never passes for a sandbox
    await _remove_files(aside)


async def sweep(root: Path) -> None:
    """Finish what a server before us began. What another one is at in this moment, it finishes itself."""
    found = list(root.iterdir())  # noqa: ASYNC240 - once, before anybody is served
    for path in sorted(found, key=lambda path: path.name.endswith(LOCK)):
        with contextlib.ExitStack() as stack:
            if path.name.endswith(LOCK):
                folders.hold(path, stack)
            elif (name := _left(path)) and folders.hold(_lock(root, name), stack):
                await _finish(path)


def _left(path: Path) -> str | None:
    """The name of the sandbox whose making or unmaking left this behind."""
    if path.name.startswith(GONE):
        return path.name.removeprefix(GONE).rpartition("-")[0]
    if path.name.startswith(NEW):
        return path.name.removeprefix(NEW)
    if path.name.startswith(TRIAL) or folders.is_spoilt(Folder(path).order):
        return path.name  # whose it was is not known any more: nobody asks for it, and nobody deletes it
    return None


async def _finish(path: Path) -> None:
    if path.name.startswith((GONE, NEW)):
        await _remove_files(path)
    else:
        await remove(Folder(path))


def _lock(root: Path, name: str) -> Path:
    return root / f".{name}{LOCK}"


def unexplained(state: dict[str, Any]) -> str:
    """What happened to a sandbox whose keeper said nothing about its end."""
    if not state:
        return "What its keeper wrote down is lost."
    if state.get("boot") != processes.boot():
        return "The machine was started anew."
    return "Its keeper was killed."


async def _end(folder: Folder) -> None:
    state = folders.read(folder.state) or {}
    keeper = _process(state.get("keeper"))
    is_current = state.get("boot") == processes.boot()
    if keeper and is_current and folders.is_locked(folder.lock):
        processes.send(keeper, signal.SIGTERM)
        if not await _until(lambda: not processes.is_alive(keeper), STOP_SECONDS):
            processes.send(keeper, signal.SIGKILL)
    if not await _until(lambda: not folders.is_locked(folder.lock), GONE_SECONDS):
        raise ProviderError(f"The keeper of {folder.path.name} does not end.")
    if is_current:
        await _end_remains(folder, state)
    await asyncio.to_thread(limits.remove, [Path(path) for path in state.get("groups", ())])


async def _end_remains(folder: Folder, state: dict[str, Any]) -> None:
    """What a keeper that was killed left behind."""
    end = time.monotonic() + GONE_SECONDS
    while remains := list(_remains(folder, state)):
        for process in remains:
            processes.send(process, signal.SIGKILL)
        if time.monotonic() > end:
            raise ProviderError(f"Process {remains[0].pid} of {folder.path.name} does not end.")
        await asyncio.sleep(POLL_SECONDS)


def _remains(folder: Folder, state: dict[str, Any]) -> Iterator[Process]:
    box = _process(state.get("box"))
    if box and processes.is_alive(box):
        yield box
    for pid in limits.members(map(Path, state.get("groups", ()))):
        if process := processes.identify(pid):
            yield process
    yield from processes.with_home(folder.home)


async def _until(condition: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        await asyncio.sleep(POLL_SECONDS)
    return True


def _process(recorded: list[int] | None) -> Process | None:
    return Process(*recorded) if recorded else None


async def _remove_files(path: Path) -> None:
    """By a program that follows folders as deep as somebody could make them; who ran there may have closed some."""
    if await _run("rm", "-rf", "--", str(path)):
        await _run("chmod", "-R", "u+rwX", "--", str(path))
        if await _run("rm", "-rf", "--", str(path)):
            raise ProviderError(f"The files in {path} cannot be removed.")


async def _run(*command: str) -> int:
    process = await asyncio.create_subprocess_exec(*command, stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL)
    return await process.wait()
