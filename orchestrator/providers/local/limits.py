"""How much of this machine a box may use: control groups, where this process may make some."""

import contextlib
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")
CONTROLLERS = ("memory", "cpu", "pids")
PERIOD_MICROSECONDS = 100_000
REMOVE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Limits:
    memory_bytes: int
    cpu: int
    pids: int
    disk_bytes: int


@dataclass(slots=True)
class Group:
    """The control group of one box: one folder on version 2, one for each controller on version 1."""

    unified: bool
    paths: dict[str, Path] = field(default_factory=dict)  # controller -> folder; on version 2 always the same one

    @property
    def holds(self) -> frozenset[str]:
        return frozenset(self.paths)

    def join(self, pid: int) -> None:
        """From now on the limits hold for this process and for all that it starts."""
        for path in self.folders():
            (path / "cgroup.procs").write_text(str(pid))

    def members(self) -> set[int]:
        return members(self.folders())

    def oom_kills(self) -> int:
        """How many processes of the box the kernel ended for want of memory."""
        if not (path := self.paths.get("memory")):
            return 0
        text = (path / ("memory.events" if self.unified else "memory.oom_control")).read_text()
        return int(dict(line.split() for line in text.splitlines()).get("oom_kill", 0))

    def remove(self) -> None:
        remove(self.folders())

    def folders(self) -> list[Path]:
        return sorted(set(self.paths.values()))


def make(name: str, limits: Limits, *, root: Path = ROOT, own: Path = OWN) -> Group:
    """A group with those limits that this machine lets us set, which may be none of them."""
    unified = (root / "cgroup.controllers").exists()
    group = Group(unified)
    for controller, parent in (_unified_parents if unified else _split_parents)(root, _memberships(own)).items():
        path = parent / name
        try:
            path.mkdir(exist_ok=True)
            for file, value in (_unified_values if unified else _split_values)(controller, limits).items():
                (path / file).write_text(value)
        except OSError:
            continue
        group.paths[controller] = path
        for file, value in _refinements(controller, limits, unified=unified).items():
            with contextlib.suppress(OSError):  # not every kernel has them
                (path / file).write_text(value)
    return group


def members(folders: Iterable[Path]) -> set[int]:
    found: set[int] = set()
    for folder in folders:
        with contextlib.suppress(FileNotFoundError):
            found.update(int(line) for line in (folder / "cgroup.procs").read_text().split())
    return found


def remove(folders: Iterable[Path]) -> None:
    """A group can be removed a moment after its last process has ended."""
    end = time.monotonic() + REMOVE_SECONDS
    for folder in folders:
        while folder.exists():
            try:
                folder.rmdir()
            except OSError:
                if time.monotonic() > end:
                    return
                time.sleep(0.01)


def _memberships(own: Path) -> dict[str, str]:
    """Controller -> the group that this process is in; version 2 has no controller's name."""
    try:
        lines = own.read_text().splitlines()
    except FileNotFoundError:
        return {}
    split = (line.split(":", 2) for line in lines)
    return {controller: path for _, controllers, path in split for controller in controllers.split(",")}


def _split_parents(root: Path, memberships: Mapping[str, str]) -> dict[str, Path]:
    parents = {}
    for controller in CONTROLLERS:
        mount = root / controller
        inside = mount / memberships.get(controller, "").lstrip("/")
        parent = inside if inside.is_dir() else mount  # a container sees its own group as the root
        if os.access(parent, os.W_OK):
            parents[controller] = parent
    return parents


def _split_values(controller: str, limits: Limits) -> dict[str, str]:
    return {
        "memory": {"memory.limit_in_bytes": str(limits.memory_bytes)},
        "cpu": {"cpu.cfs_quota_us": str(limits.cpu * PERIOD_MICROSECONDS)},
        "pids": {"pids.max": str(limits.pids)},
    }[controller]


def _unified_parents(root: Path, memberships: Mapping[str, str]) -> dict[str, Path]:
    """The nearest group above our own that is ours to divide: one that holds processes itself cannot be divided."""
    own = root / memberships.get("", "").lstrip("/")
    for parent in own.parents if own.is_relative_to(root) and own != root else ():
        if not parent.is_relative_to(root):
            break
        if os.access(parent, os.W_OK) and os.access(parent / "cgroup.procs", os.W_OK):
            return dict.fromkeys(_given(parent / "cgroup.subtree_control"), parent)
    return {}


def _given(control: Path) -> set[str]:
    """The controllers that groups below have, after those that are missing were asked for."""
    for controller in set(CONTROLLERS) - set(control.read_text().split()):
        with contextlib.suppress(OSError):
            control.write_text(f"+{controller}")
    return set(CONTROLLERS) & set(control.read_text().split())


def _unified_values(controller: str, limits: Limits) -> dict[str, str]:
    return {
        "memory": {"memory.max": str(limits.memory_bytes)},
        "cpu": {"cpu.max": f"{limits.cpu * PERIOD_MICROSECONDS} {PERIOD_MICROSECONDS}"},
        "pids": {"pids.max": str(limits.pids)},
    }[controller]


def _refinements(controller: str, limits: Limits, *, unified: bool) -> dict[str, str]:
    if controller != "memory":
        return {}
    if unified:  # all of the box ends with the process that took too much, and nothing goes to the swap
        return {"memory.swap.max": "0", "memory.oom.group": "1"}
    return {"memory.memsw.limit_in_bytes": str(limits.memory_bytes)}
