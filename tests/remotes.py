"""A git host as others run it: several repositories, a token that may push, and one that may only read."""

import contextlib
import subprocess
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tests.worker.plane import basic, listening
from tests.worker.remote import Remote


class Host(Remote):
    """`password` may do all, `reader` may only fetch."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.reader = "may-only-read"

    async def answer(self, request: Request) -> Response:
        if basic(request) == self.reader:
            if "receive-pack" in str(request.url):
                return Response("You may only read here.\n", 403, media_type="text/plain")
            return await self.serve(request)
        return await super().answer(request)


@contextlib.asynccontextmanager
async def hosting(folder: Path, password: str):
    """One with `project.git`, which has a commit, and `empty.git`, which has none."""
    host = Host(folder)
    host.password = password
    for name in ("project", "empty"):
        bare = folder / f"{name}.git"
        subprocess.run(["git", "init", "-q", "--bare", "-b", "main", bare], check=True)
        host.git("config", "http.receivepack", "true", cwd=bare)
    host.commit({"README.md": "# Work\n"})
    route = Route("/{path:path}", host.answer, methods=["GET", "POST"])
    async with listening(Starlette(routes=[route])) as host.address:
        yield host
