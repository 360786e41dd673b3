"""The first program in a box: it opens the port of the door, waits for its orders, and becomes the worker.

python -I -S inside.py PORT     with a socket to the keeper as descriptor 3

The port is opened here, in the network of the box, and handed to the keeper, who answers it from outside: nothing of
the machine has to be visible in the box for that. Descriptor 3 closes when the worker has taken over; until then what
goes wrong is said on it.
"""

import ctypes
import json
import os
import resource
import signal
import socket
import sys
from typing import Any

KEEPER = 3
PR_SET_PDEATHSIG = 1
PYTHON_IGNORES = (signal.SIGPIPE, signal.SIGXFSZ)  # and a program that is started would inherit that


def main(port: int) -> None:
    keeper = socket.socket(fileno=KEEPER)
    keeper.set_inheritable(False)
    try:
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        door = socket.create_server(("127.0.0.1", port), backlog=128)
        socket.send_fds(keeper, [b"."], [door.fileno()])
        _become(json.loads(_everything(keeper)))
    except (OSError, ValueError) as error:
        keeper.sendall(str(error).encode())
    os._exit(127)


def _everything(keeper: socket.socket) -> bytes:
    parts = []
    while part := keeper.recv(65536):
        parts.append(part)
    return b"".join(parts)


def _become(orders: dict[str, Any]) -> None:
    for name, most in orders["rlimits"].items():
        which = getattr(resource, name)
        _, hard = resource.getrlimit(which)
        least = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(which, (least, least))
    for ignored in PYTHON_IGNORES:
        signal.signal(ignored, signal.SIG_DFL)
    os.umask(0o022)
    os.chdir(orders["cwd"])
    command = orders["command"]
    os.execve(command[0], command, orders["env"])  # noqa: S606 - the provider's own words


if __name__ == "__main__":
    main(int(sys.argv[1]))
