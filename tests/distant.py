"""Remotes that no sandbox reaches by itself: git's own ssh transport over a stand-in for ssh, and git daemon."""

import asyncio
import contextlib
import os
import signal
import socket
from asyncio.subprocess import DEVNULL
from pathlib import Path

from tests.servers import until

HOST = "git.example"
PROGRAM = """#!/bin/sh
echo "$@" >> "{folder}/asked"
if test -e "{folder}/away"; then echo "ssh: connect to host {host} port 22: Connection refused" >&2; exit 255; fi
if test -e "{folder}/denied"; then echo "git@{host}: Permission denied (publickey)." >&2; exit 255; fi
if test -e "{folder}/silent"; then exec sleep 600; fi
while test $# -gt 2; do shift; done
case "$2" in *receive-pack*) test -e "{folder}/before" && env -i PATH="$PATH" sh "{folder}/before" >&2 ;; esac
exec env -i PATH="$PATH" GIT_PROTOCOL="$GIT_PROTOCOL" sh -c "$2"
"""


class Ssh:
    """What the program was asked, and how it shall answer: `away`, `denied`, `silent`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def asked(self) -> list[str]:
        return (self.folder / "asked").read_text().splitlines()

    @contextlib.contextmanager
    def being(self, how: str):
        (self.folder / how).touch()
        try:
            yield
        finally:
            (self.folder / how).unlink()

    def before_push(self, script: str) -> None:
        """What happens at the other end just before a push comes in."""
        (self.folder / "before").write_text(script)


@contextlib.contextmanager
def ssh(folder: Path):
    """The first `ssh` on the path of this process: it reaches HOST, which is this machine."""
    folder.mkdir()
    program = folder / "ssh"
    program.write_text(PROGRAM.format(folder=folder, host=HOST))
    program.chmod(0o755)
    path = os.environ["PATH"]
    os.environ["PATH"] = f"{folder}:{path}"
    try:
        yield Ssh(folder)
    finally:
        os.environ["PATH"] = path


@contextlib.asynccontextmanager
async def daemon(folder: Path):
    """`git daemon` for all below the folder, as whoever may write there; answers its host and port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    words = ("--reuseaddr", "--export-all", "--enable=receive-pack", "--listen=127.0.0.1", f"--port={port}")
    process = await asyncio.create_subprocess_exec(
        "git", "daemon", *words, f"--base-path={folder}", stdout=DEVNULL, stderr=DEVNULL, start_new_session=True
    )
    try:
        await until(lambda: _listens(port))
        yield f"127.0.0.1:{port}"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        await process.wait()


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False
