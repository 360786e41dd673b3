"""Node scripts as tests: run with the packages of their folder, and what they print read as JSON."""

import asyncio
import json
import os
import sys
from pathlib import Path

PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
CLIENTS = Path(__file__).parent / "clients"
SECONDS = 120


async def node(script: str, *, folder: Path = CLIENTS, **env: str):
    """Each line of JSON that the script prints. A script that fails fails the test, with what it said."""
    process = await asyncio.create_subprocess_exec(
        "node",
        f"{script}.mjs",
        cwd=folder,
        env={**os.environ, "PATH": PATH, **env},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(SECONDS):
            said, complaints = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, said.decode() + complaints.decode()
    return [json.loads(line) for line in said.decode().splitlines() if line.startswith("{")]
