"""Which process a number means: numbers are used again, so a process is its number and the moment of its start."""

import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
HAS_PROC = sys.platform == "linux"
STATE, PARENT, START = 0, 1, 19  # of what stands behind the name in /proc/PID/stat


class Process(NamedTuple):
    pid: int
    start: int  # in clock ticks since the machine's start; 0 where the system does not tell


def identify(pid: int) -> Process | None:
    """The process that has this number now, unless it has ended."""
    if not HAS_PROC:
        return Process(pid, 0) if _exists(pid) else None
    fields = _stat(pid)
    return Process(pid, int(fields[START])) if fields and fields[STATE] not in ("Z", "X") else None


def is_alive(process: Process) -> bool:
    return identify(process.pid) == process


def parent(pid: int) -> int | None:
    fields = _stat(pid)
    return int(fields[PARENT]) if fields else None


def children(pid: int) -> set[int]:
    return {child for child in _numbers() if parent(child) == pid}


def send(process: Process, number: signal.Signals) -> None:
    """Signal exactly this process: one that has its number by now hears nothing."""
    with contextlib.suppress(ProcessLookupError):
        if not hasattr(os, "pidfd_open"):
            if is_alive(process):
                os.kill(process.pid, number)
            return
        descriptor = os.pidfd_open(process.pid)
        try:
            if is_alive(process):
                signal.pidfd_send_signal(descriptor, number)
        finally:
            os.close(descriptor)


def with_home(home: Path) -> list[Process]:
    """Every process that was started with this home folder, however it tore itself off from its parents."""
    entry = b"HOME=" + os.fsencode(home)
    found = []
    for pid in _numbers():
        with contextlib.suppress(OSError):
            if entry in (PROC / str(pid) / "environ").read_bytes().split(b"\0") and (process := identify(pid)):
                found.append(process)
    return found


def boot() -> str:
    """Differs after each start of the machine: what was recorded before that means nothing now."""
    with contextlib.suppress(OSError):
        return (PROC / "sys/kernel/random/boot_id").read_text().strip()
    return ""


def _numbers() -> list[int]:
    return [int(path.name) for path in PROC.iterdir() if path.name.isdigit()] if HAS_PROC else []


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return True


def _stat(pid: int) -> list[str] | None:
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
