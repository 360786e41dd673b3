"""A git remote as others run it: smart HTTP over bare repositories, opened by a password."""

import asyncio
import contextlib
import os
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tests.worker.plane import basic, listening

BACKEND = Path(subprocess.check_output(["git", "--exec-path"], text=True).strip(), "git-http-backend")
QUIET = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_TERMINAL_PROMPT": "0", "HOME": "/nonexistent"}
WHO = {f"GIT_{role}_{what}": "eve@example.org" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}


class Remote:
    """One bare repository, `project.git`, and what was asked of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = ""
        self.password = "git-password"
        self.status = 0  # answers everything with this
        self.asked: list[str] = []

    @property
    def url(self) -> str:
        return f"{self.address}/project.git"

    def git(self, *arguments: str, cwd: Path | None = None, data: str | None = None) -> str:
        environ = {"PATH": os.environ["PATH"], **QUIET, **WHO}
        done = subprocess.run(
            ["git", *arguments], cwd=cwd or self.folder / "project.git", env=environ, input=data, text=True,
            capture_output=True, check=True,
        )  # fmt: skip
        return done.stdout.strip()

    def commit(self, files: dict[str, str], branch: str = "main") -> str:
        """A commit on top of a branch, made by somebody else."""
        lines = [f"commit refs/heads/{branch}", "committer eve <eve@example.org> 1700000000 +0000", "data 4", "work"]
        parent = self.git("for-each-ref", f"refs/heads/{branch}", "--format=%(objectname)")
        lines += [f"from {parent}"] if parent else []
        for name, text in files.items():
            lines += [f"M 100644 inline {name}", f"data {len(text.encode())}", text]
        self.git("fast-import", "--quiet", "--force", data="\n".join(lines) + "\n\n")
        return self.head(branch)

    def head(self, branch: str) -> str:
        return self.git("rev-parse", branch)

    def files(self, branch: str) -> list[str]:
        return self.git("ls-tree", "-r", "--name-only", branch).splitlines()

    def show(self, branch: str, name: str) -> str:
        return self.git("show", f"{branch}:{name}")

    async def answer(self, request: Request) -> Response:
        self.asked.append(request.url.path)
        if self.status:
            return Response(status_code=self.status)
        if basic(request) != self.password:
            return Response(status_code=401, headers={"www-authenticate": 'Basic realm="git"'})
        return await self.serve(request)

    async def serve(self, request: Request) -> Response:
        environ = {
            "PATH": os.environ["PATH"],
            "GIT_PROJECT_ROOT": str(self.folder),
            "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": request.url.path,
            "QUERY_STRING": request.url.query,
            "REQUEST_METHOD": request.method,
            "CONTENT_TYPE": request.headers.get("content-type", ""),
            "HTTP_CONTENT_ENCODING": request.headers.get("content-encoding", ""),
            "GIT_PROTOCOL": request.headers.get("git-protocol", ""),
            "REMOTE_USER": "worker",
        }
        body = await request.body()
        environ["CONTENT_LENGTH"] = str(len(body))
        done = await asyncio.to_thread(subprocess.run, [BACKEND], input=body, env=environ, capture_output=True)
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().splitlines())
        status = int(headers.pop("Status", "200").split()[0])
        return Response(content, status, headers=headers)


@contextlib.asynccontextmanager
async def serving(folder: Path, files: dict[str, str] | None = None) -> AsyncIterator[Remote]:
    """With these files on `main`; without any it is empty."""
    remote = Remote(folder)
    subprocess.run(["git", "init", "-q", "--bare", "-b", "main", folder / "project.git"], check=True)
    remote.git("config", "http.receivepack", "true")
    if files:
        remote.commit(files)
    route: Any = Route("/{path:path}", remote.answer, methods=["GET", "POST"])
    async with listening(Starlette(routes=[route])) as remote.address:
        yield remote
