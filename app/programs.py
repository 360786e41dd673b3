"""The end of programs that this server has started."""

import asyncio
import os
import signal
from asyncio.subprocess import Process
from contextlib import suppress

LEAVE_SECONDS = 2


async def end(process: Process) -> None:
    """With all that it has started. At first only its input ends: of half a push git then takes away every trace."""
    if process.stdin is not None:
        process.stdin.close()
    for number in (None, signal.SIGTERM, signal.SIGKILL):
        if number is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
        with suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_SECONDS):
                await process.wait()
                return
