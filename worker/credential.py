"""Git's credential helper, started by git for each operation: asks the server for what it needs, and keeps nothing."""

import asyncio
import os
import sys
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx

from worker.server import ISSUE, Over, Refused, Server, Unreachable, pauses

PATIENCE_SECONDS = 1500.0


async def answer(asked: str, environ: Mapping[str, str]) -> str:
    """What git shall read: nothing for any host but the repository's, and nothing when the server has none."""
    wanted = dict(line.partition("=")[::2] for line in asked.splitlines())
    address = urlsplit(environ.get("REPO_URL", ""))
    if (wanted.get("protocol"), wanted.get("host")) != (address.scheme, address.netloc.rpartition("@")[2]):
        return ""
    issued = await _issue(environ)
    return f"username={issued['username']}\npassword={issued['password']}\n" if issued.get("username") else ""


async def _issue(environ: Mapping[str, str]) -> dict[str, Any]:
    ends, attempts = time.monotonic() + PATIENCE_SECONDS, pauses()
    async with httpx.AsyncClient() as http:
        server = Server(environ["CALLBACK_URL"], environ["OMOI_SANDBOX_TOKEN"], http)
        while time.monotonic() < ends:
            try:
                return await server.ask(ISSUE, {"operation": environ.get("OMOI_GIT_OPERATION", "FETCH")})
            except (Over, Refused):
                break
            except Unreachable:
                await asyncio.sleep(next(attempts))
    return {}


if __name__ == "__main__" and sys.argv[1:] == ["get"]:
    sys.stdout.write(asyncio.run(answer(sys.stdin.read(), os.environ)))
