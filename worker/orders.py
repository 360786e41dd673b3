"""What the worker is told. It knows nothing but its environment, and reads that once."""

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Orders:
    """KeyError or ValueError when the environment is not that of a worker."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = dict(environ)  # what git, checks and the agent inherit
        self.home = Path(environ["HOME"]).resolve()
        self.state = self.home / ".omoi"
        self.repository = self.home / "repository"
        self.result = self.state / "result.json"
        self.callback_url = environ["CALLBACK_URL"].rstrip("/")
        self.token = environ["OMOI_SANDBOX_TOKEN"]
        self.prompt = environ["TASK_DESCRIPTION"]
        self.data: dict[str, Any] = json.loads(base64.b64decode(environ["TASK_DATA_BASE64"]))
        self.permission_mode: Any = environ.get("PERMISSION_MODE", "acceptEdits")
        self.repository_url = environ.get("REPO_URL", "")
        self.branch = environ.get("BRANCH_NAME", "work")
        self.base_branch = environ.get("BASE_BRANCH", "main")
        self.session_id = environ.get("RESUME_SESSION_ID", "")  # of the session to resume
        self.heartbeat_seconds = float(environ.get("OMOI_HEARTBEAT_SECONDS", "30"))
        self.stall_seconds = float(environ.get("OMOI_STALL_SECONDS", "900"))
        self.rounds = int(environ.get("OMOI_ROUNDS", "3"))
