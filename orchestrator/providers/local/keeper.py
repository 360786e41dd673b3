"""The process that keeps one box: it starts it, holds its door, ends it with all that is in it, and says how it ended.

It belongs to no server. What it is to do comes on standard input, because that is secret; whether the worker runs is
one line of JSON on standard output. While it lives it holds the folder's lock; when it is killed the box ends too.
"""

import asyncio
import contextlib
import ctypes
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from orchestrator.providers.local import folder as folders
from orchestrator.providers.local import launch, limits, processes
from orchestrator.providers.local.egress import Door
from orchestrator.providers.local.folder import Folder
from orchestrator.providers.local.hosts import Hosts
from orchestrator.providers.local.launch import DOOR, Box
from orchestrator.providers.local.limits import Group, Limits
from orchestrator.providers.local.log import Log

LOCK_SECONDS = 2.0
CLEAR_SECONDS = 10.0
DISK_SHARE = 20  # measuring takes at most one part in so many of the time
BLOCK_BYTES = 512
PR_SET_CHILD_SUBREAPER = 36


@dataclass(slots=True)
class Keeping:
    """A box, and what its keeper knows about it."""

    folder: Folder
    orders: dict[str, Any]
    log: Log
    group: Group
    box: Box
    door: socket.socket
    status: int | None = None
    detail: str = ""
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def end(self, detail: str) -> None:
        self.detail = self.detail or detail
        self.box.kill()

    def reap(self) -> None:
        """Bury who has ended, those too that came to us because their parents ended before them."""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == self.box.program:
                    self.status = ended[1]
                    self.over.set()

    def drain(self) -> None:
        self.box.drain(self.log)
        if self.box.is_silent:
            asyncio.get_running_loop().remove_reader(self.box.output)


def main(path: str) -> NoReturn:
    orders = json.load(sys.stdin)
    if os.fork():
        os._exit(0)
    os.setsid()
    os.chdir("/")
    os.umask(0o077)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    folder = Folder(Path(path))
    try:
        _own(folder)
        keeping = _start(folder, orders)
    except (launch.NotStarted, OSError) as error:
        _report(str(error))
        os._exit(1)
    _report("")
    asyncio.run(_keep(keeping))
    os._exit(0)


def _own(folder: Folder) -> None:
    """Hold the lock of the folder for as long as this process lives."""
    end = time.monotonic() + LOCK_SECONDS
    while folders.try_lock(folder.lock) is None:
        if time.monotonic() > end:
            raise launch.NotStarted("Another keeper has this sandbox.")
        time.sleep(0.005)


def _report(reason: str) -> None:
    """Tell who ordered the box, if he is still there, and be on our own from now on."""
    with contextlib.suppress(OSError):
        os.write(1, json.dumps({"reason": reason}).encode())
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(nowhere, 1)


def _start(folder: Folder, orders: dict[str, Any]) -> Keeping:
    log = Log(folder)
    group = limits.make(f"{folder.path.name}-{os.getpid()}", Limits(**orders["limits"]))
    state = {
        "keeper": processes.identify(os.getpid()),
        "boot": processes.boot(),
        "groups": [str(path) for path in group.folders()],
    }
    folders.write(folder.state, state)
    box = launch.spawn(orders["first"])
    try:
        door = launch.await_first(box, log)
        assert box.worker
        _limit(group, box.worker.pid, log)
        launch.become_worker(box, _orders_of_worker(orders, door.getsockname()[1]))
    except BaseException:
        _clear(group, box)
        group.remove()
        raise
    folders.write(folder.state, state | {"box": box.first, "limits": sorted(group.holds | set(orders["held"]))})
    return Keeping(folder, orders, log, group, box, door)


def _limit(group: Group, pid: int, log: Log) -> None:
    try:
        group.join(pid)
    except OSError as error:
        log.say(f"limits do not hold: {error}")
        group.remove()
        group.paths.clear()


def _orders_of_worker(orders: dict[str, Any], port: int) -> dict[str, Any]:
    """Where the box shares the machine's network its door has some other port; what names the door then names that."""
    there = f"http://127.0.0.1:{port}"
    env = {
        name: there + value.removeprefix(DOOR) if _leads_to_door(name, value, orders["env"]) else value
        for name, value in orders["env"].items()
    }
    return {"command": orders["command"], "cwd": orders["cwd"], "env": env, "rlimits": orders["rlimits"]}


def _leads_to_door(name: str, value: str, env: Mapping[str, str]) -> bool:
    """A repository elsewhere may have the same address: this machine's own port of that number."""
    elsewhere = name == "REPO_URL" and "OMOI_GIT_DOOR" not in env
    return not elsewhere and (value == DOOR or value.startswith(f"{DOOR}/"))


async def _keep(keeping: Keeping) -> None:
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGCHLD, keeping.reap)
    loop.add_signal_handler(signal.SIGTERM, keeping.end, "It was deleted.")
    loop.add_reader(keeping.box.output, keeping.drain)
    keeping.reap()
    orders = keeping.orders
    hosts = Hosts.of(orders["reachable"], in_public=orders["reachable_in_public"], open_network=orders["open_network"])
    async with Door(hosts, Path(orders["server"]), keeping.log.say).open(keeping.door):
        watchers = [asyncio.create_task(_limit_life(keeping)), asyncio.create_task(_limit_disk(keeping))]
        await keeping.over.wait()
        for watcher in watchers:
            watcher.cancel()
    _finish(keeping)


async def _limit_life(keeping: Keeping) -> None:
    await asyncio.sleep(keeping.orders["life_seconds"])
    keeping.detail = keeping.detail or "Its time was over."
    if keeping.box.worker:
        processes.send(keeping.box.worker, signal.SIGTERM)
    await asyncio.sleep(keeping.orders["grace_seconds"])
    keeping.end("")


async def _limit_disk(keeping: Keeping) -> None:
    most = keeping.orders["limits"]["disk_bytes"]
    pause = keeping.orders["disk_seconds"]
    while True:
        began = time.monotonic()
        used = await asyncio.to_thread(_used, [keeping.folder.home, keeping.folder.tmp])
        if used > most:
            keeping.end(f"Its files took more than {most} bytes, which is its disk limit.")
        await asyncio.sleep(max(pause, DISK_SHARE * (time.monotonic() - began)))


def _used(folders: list[Path]) -> int:
    """Bytes on the disk; what appears or vanishes meanwhile counts or does not."""
    total = 0
    waiting = [str(folder) for folder in folders]
    while waiting:
        with contextlib.suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    total += entry.stat(follow_symlinks=False).st_blocks * BLOCK_BYTES
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
    return total


def _finish(keeping: Keeping) -> None:
    _clear(keeping.group, keeping.box)
    keeping.drain()
    end = {
        "exit": _exit_code(keeping.status),
        "oom": keeping.group.oom_kills() > 0,
        "detail": keeping.detail,
        "at": time.time(),
    }
    keeping.group.remove()
    folders.write(keeping.folder.end, end)


def _exit_code(status: int | None) -> int | None:
    if status is None:
        return None
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _clear(group: Group, box: Box) -> None:
    """End every process of the box. Whose parents are gone is a child of ours, however it tore itself off."""
    if not processes.HAS_PROC:  # nobody tells us who our children are, but most are in the group of the first
        with contextlib.suppress(OSError):
            os.killpg(box.program, signal.SIGKILL)
    end = time.monotonic() + CLEAR_SECONDS
    while time.monotonic() < end:
        for pid in group.members() | processes.children(os.getpid()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return
