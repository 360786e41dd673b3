"""How a box comes to run its worker: its first program reports, gets its orders, and becomes the worker."""

import contextlib
import json
import os
import signal
import socket
import struct
from dataclasses import dataclass
from typing import Any

from orchestrator.providers.local import processes
from orchestrator.providers.local.log import Log
from orchestrator.providers.local.processes import Process

DOOR = "http://127.0.0.1:8000"  # as the worker is told
START_SECONDS = 20.0
REASON_BYTES = 2000
READ_BYTES = 65536
READS = 16
CONTROL = 3
_SETTABLE = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}  # whatever our starter ignored
CREDENTIALS = struct.Struct("3i")  # process, user, group: as this process sees them


class NotStarted(Exception):
    """The worker does not run; the message is the reason as the system gave it."""


@dataclass(slots=True)
class Box:
    """A box that was started. Where there are no namespaces its program, its first process and its worker are one."""

    program: int  # our child
    output: int  # what it says, to be read here
    control: socket.socket
    first: Process | None = None  # all of the box has ended when this one has
    worker: Process | None = None
    is_silent: bool = False  # nobody is left who could say anything

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.program, signal.SIGKILL)  # not yet waited for, so nobody else has its number

    def drain(self, log: Log) -> bytes:
        """Keep what it said up to now, or a good part of that; the end of it is returned."""
        said = b""
        with contextlib.suppress(BlockingIOError):
            for _ in range(READS):
                if not (data := os.read(self.output, READ_BYTES)):
                    self.is_silent = True
                    break
                log.write(data)
                said = (said + data)[-REASON_BYTES:]
        return said


def spawn(command: list[str]) -> Box:
    """Start the box with nothing of our own in it but the three descriptors and the control socket."""
    ours, theirs = socket.socketpair()
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    if hasattr(socket, "SO_PASSCRED"):
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, writing, 1),
        (os.POSIX_SPAWN_DUP2, writing, 2),
        (os.POSIX_SPAWN_DUP2, theirs.fileno(), CONTROL),
    ]
    try:
        program = os.posix_spawn(
            command[0], command, {}, file_actions=actions, setsid=True, setsigmask=(), setsigdef=_SETTABLE
        )
    except OSError as error:
        raise NotStarted(str(error)) from error
    finally:
        os.close(writing)
        theirs.close()
    return Box(program, reading, ours)


def await_first(box: Box, log: Log) -> socket.socket:
    """The listening socket of the box, once it runs."""
    box.control.settimeout(START_SECONDS)
    try:
        data, ancillary, *_ = box.control.recvmsg(1, 1024)
    except OSError as error:
        raise NotStarted(f"The box did not report within {START_SECONDS:g} seconds.") from error
    if not data:
        raise NotStarted(box.drain(log).decode(errors="replace").strip() or "The box ended without a word.")
    worker, listener = box.program, None
    for _, kind, content in ancillary:
        if kind == socket.SCM_RIGHTS:
            listener = socket.socket(fileno=int.from_bytes(content[:4], "little"))
        else:
            worker = CREDENTIALS.unpack(content)[0]
    if listener is None:
        raise NotStarted("The box reported without its port.")
    box.worker = processes.identify(worker)
    box.first = box.worker if worker == box.program else processes.identify(processes.parent(worker) or worker)
    return listener


def become_worker(box: Box, orders: dict[str, Any]) -> None:
    """Returns when the worker runs. The orders are secret: they stand in no file and in no argument."""
    try:
        box.control.sendall(json.dumps(orders).encode())
        box.control.shutdown(socket.SHUT_WR)
        reason = box.control.recv(REASON_BYTES)
    except OSError as error:
        raise NotStarted(f"The box took no orders: {error}.") from error
    if reason:
        raise NotStarted(reason.decode(errors="replace"))
    box.control.close()
