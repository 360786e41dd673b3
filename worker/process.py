"""Commands with their own process group, a time limit and a bound on what they may say."""

import asyncio
import contextlib
import os
import signal
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

LARGEST_OUTPUT_BYTES = 64 << 20
LOOK_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Done:
    code: int  # -n for signal n
    out: str
    err: str
    ended: str = ""  # why it was ended from here, if it was


async def run(
    *command: str, cwd: Path, env: Mapping[str, str], seconds: float, data: bytes = b"", merged: bool = False
) -> Done:
    """Run it to its end. It goes to files, not pipes: what it leaves in the background holds up nothing."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, tempfile.TemporaryFile() as stdin:
        stdin.write(data)
        stdin.seek(0)
        process = await asyncio.create_subprocess_exec(
            *command, cwd=cwd, env=env, stdin=stdin, stdout=out, stderr=out if merged else err, start_new_session=True
        )
        try:
            ended = await _end(process, out.fileno(), seconds)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            code = await process.wait()
        out.seek(0)
        err.seek(0)
        said = [file.read(LARGEST_OUTPUT_BYTES).decode("utf-8", "replace") for file in (out, err)]
        return Done(code, said[0], said[1], ended)


async def _end(process: asyncio.subprocess.Process, out: int, seconds: float) -> str:
    clock = asyncio.get_running_loop().time
    ends = clock() + seconds
    while clock() < ends:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), min(LOOK_SECONDS, ends - clock()))
            return ""
        if os.fstat(out).st_size > LARGEST_OUTPUT_BYTES:
            return f"It was ended because it said more than {LARGEST_OUTPUT_BYTES >> 20} MiB."
    return f"It was ended after {seconds:.0f} s."
