"""Keeps one program from outliving its owner: asks it to stop as soon as standard input ends.

python -I -S postgres_keeper.py PROGRAM ARGUMENT…

Only the owner holds the other end of standard input, so that it ends when the owner does, SIGKILL included, on every
system. A program of its own, because a death signal from the kernel exists on Linux alone and hangs on a thread.
"""

import os
import signal
import subprocess
import sys
import threading

PATIENCE_SECONDS = 20


def main(command: list[str]) -> int:
    for asked in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(asked, _ignore)  # a handler, not SIG_IGN: the program would inherit that
    try:
        # What else the owner passed on is a lock: the program has to inherit it, close_fds would take it away.
        program = subprocess.Popen(command, stdin=subprocess.DEVNULL, close_fds=False)  # noqa: S603 - the owner's words
    except OSError as error:
        sys.exit(f"error: {error}")
    threading.Thread(target=_stop_when_alone, args=(program,), daemon=True).start()
    return program.wait()


def _ignore(*_: object) -> None:
    """Signals are for the owner; the keeper obeys its standard input."""


def _stop_when_alone(program: subprocess.Popen[bytes]) -> None:
    os.read(0, 1)
    program.send_signal(signal.SIGINT)  # PostgreSQL: fast shutdown; initdb: tidies up
    threading.Timer(PATIENCE_SECONDS, program.send_signal, (signal.SIGQUIT,)).start()


if __name__ == "__main__":
    os._exit(main(sys.argv[1:]) & 0xFF)  # a thread may still be reading: not worth waiting for
