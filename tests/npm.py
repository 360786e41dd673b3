"""Node scripts as tests, and other programs that speak to a server: run, heard while they run, and ended."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from dataclasses import dataclass, field
from pathlib import Path

PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
CLIENTS = Path(__file__).parent / "clients"
SECONDS = 120


@dataclass
class Program:
    process: Process
    said: list[str] = field(default_factory=list)  # its lines so far
    complaints: str = ""  # all that it wrote to its standard error, once it has ended

    async def listen(self) -> None:
        complaints = asyncio.create_task(self.process.stderr.read())
        async for line in self.process.stdout:
            self.said.append(line.decode().rstrip("\n"))
        self.complaints = (await complaints).decode()

    @property
    def told(self) -> list:
        """Each line of JSON."""
        return [json.loads(line) for line in self.said if line.startswith("{")]


@contextlib.asynccontextmanager
async def running(*command: object, folder: Path, code: int = 0, **env: str):
    """A program, which ends by itself at the end of the block. With another code it fails the test by what it said."""
    given = {**os.environ, "PATH": PATH, **env}
    process = await asyncio.create_subprocess_exec(
        *command, cwd=folder, env=given, stdout=PIPE, stderr=PIPE, start_new_session=True
    )
    program = Program(process)
    listening = asyncio.create_task(program.listen())
    try:
        async with asyncio.timeout(SECONDS):
            yield program
            await listening
            ended = await process.wait()
    finally:
        listening.cancel()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # `node` here is a script that starts the real one
        await process.wait()
    assert ended == code, "\n".join([*program.said, program.complaints])


async def node(script: str, *, folder: Path = CLIENTS, **env: str):
    """Each line of JSON that the script prints."""
    async with running("node", f"{script}.mjs", folder=folder, **env) as program:
        pass
    return program.told
