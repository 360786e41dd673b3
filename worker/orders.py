"""What the worker is told. It knows nothing but its environment, and reads that once."""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PERMISSION_MODES = {"acceptEdits", "bypassPermissions", "dontAsk", "plan"}


@dataclass(frozen=True, slots=True)
class Orders:
    environ: Mapping[str, str] = field(repr=False)  # what git, checks and the agent inherit
    home: Path
    callback_url: str
    token: str = field(repr=False)
    prompt: str
    data: Mapping[str, Any]
    permission_mode: Any
    repository_url: str = ""
    branch: str = "work"
    base_branch: str = ""
    session_id: str = ""  # of the session to resume
    heartbeat_seconds: float = 30.0
    stall_seconds: float = 900.0
    rounds: int = 3

    @property
    def state(self) -> Path:
        return self.home / ".omoi"

    @property
    def repository(self) -> Path:
        return self.home / "repository"

    @property
    def result(self) -> Path:
        return self.state / "result.json"

    @property
    def commit_message(self) -> str:
        ticket, task = self.data.get("ticket") or {}, self.data.get("task") or {}
        title = " ".join(str(ticket.get("title") or task.get("title") or "Work of an agent").split())
        return f"{title}\n\nTicket #{ticket.get('number', '-')}, task {task.get('id', '-')}"


def read(environ: Mapping[str, str]) -> Orders:
    """KeyError or ValueError when the environment is not that of a worker."""
    if (mode := environ.get("PERMISSION_MODE", "acceptEdits")) not in PERMISSION_MODES:
        raise ValueError(f"PERMISSION_MODE {mode} is not known.")
    return Orders(
        environ=dict(environ),
        home=Path(environ["HOME"]).resolve(),
        callback_url=environ["CALLBACK_URL"].rstrip("/"),
        token=environ["OMOI_SANDBOX_TOKEN"],
        prompt=environ["TASK_DESCRIPTION"],
        data=json.loads(base64.b64decode(environ.get("TASK_DATA_BASE64", "e30="))),
        permission_mode=mode,
        repository_url=environ.get("REPO_URL", ""),
        branch=environ.get("BRANCH_NAME") or "work",
        base_branch=environ.get("BASE_BRANCH", ""),
        session_id=environ.get("RESUME_SESSION_ID", ""),
        heartbeat_seconds=float(environ.get("OMOI_HEARTBEAT_SECONDS", "30")),
        stall_seconds=float(environ.get("OMOI_STALL_SECONDS", "900")),
        rounds=int(environ.get("OMOI_ROUNDS", "3")),
    )
