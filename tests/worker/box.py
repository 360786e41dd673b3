"""A worker as a sandbox runs it: the archive, a home of its own, and nothing in its environment but its orders."""

import asyncio
import base64
import contextlib
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.archive import worker_archive
from orchestrator.instructions import SUBAGENTS
from tests.worker.plane import TOKEN, Plane

PATIENCE_SECONDS = 60
BRANCH = "feature/7-binomials"
HURRY = {"CLAUDE_CODE_MAX_RETRIES": "1", "CLAUDE_CODE_RETRY_WATCHDOG": "false"}


@dataclass
class Box:
    home: Path
    process: Process

    async def ended(self, seconds: float = PATIENCE_SECONDS) -> tuple[int, str]:
        async with asyncio.timeout(seconds):
            _, said = await self.process.communicate()
        return self.process.returncode, said.decode()


def environment(home: Path, plane: Plane, model: str, task: str, **more: Any) -> dict[str, str]:
    data = {
        "task": {"id": "t-1", "title": "Compute", "description": task},
        "ticket": {"id": "k-1", "number": 7, "title": "Binomials"},
        "checks": more.pop("checks", []),
        "maxTurns": more.pop("max_turns", 40),
        "enableSkills": more.pop("skills", False),
        "subagents": SUBAGENTS if more.pop("subagents", False) else {},
        "guide": "Do what the task says.",
        "commitMessage": "Binomials\n\nTicket #7, task t-1",
        "author": {"name": "Ada", "email": "ada@example.org"},
    }
    return {
        "PATH": "/usr/bin:/bin",
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "TASK_DESCRIPTION": task,
        "TASK_DATA_BASE64": base64.b64encode(json.dumps(data).encode()).decode(),
        "CALLBACK_URL": plane.url,
        "OMOI_SANDBOX_TOKEN": TOKEN,
        "ANTHROPIC_BASE_URL": model,
        "BRANCH_NAME": BRANCH,
        "BASE_BRANCH": "main",
        "PERMISSION_MODE": "acceptEdits",
        **HURRY,
        **{name: str(value) for name, value in more.items()},
    }


@contextlib.asynccontextmanager
async def running(home: Path, environ: dict[str, str]) -> AsyncIterator[Box]:
    home.mkdir(exist_ok=True)
    archive = home.with_name("worker.pyz")
    archive.write_bytes(worker_archive())
    process = await asyncio.create_subprocess_exec(
        sys.executable, archive, cwd=home, env=environ, stderr=PIPE, stdout=PIPE, start_new_session=True
    )
    try:
        yield Box(home, process)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.communicate()
