"""The clients that others use, from npm, against the endpoint: tests/clients/*.mjs on a real server."""

import asyncio
import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.schema import toy

FOLDER = Path(__file__).parent.parent / "clients"
DOCUMENTS = {"SUBSCRIPTION": "subscription { ticks { number } }", "ENDLESS": "subscription { forever }"}
TICKS = [{"data": {"ticks": {"number": number}}} for number in range(3)]
TYPENAME = [{"data": {"__typename": "Query"}}]


async def run(*command, **env):
    process = await asyncio.create_subprocess_exec(
        *command, cwd=FOLDER, env={**os.environ, **env}, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(120):
            out, complaints = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, complaints.decode()
    return [json.loads(line) for line in out.decode().splitlines() if line.startswith("{")]


@pytest.fixture(scope="module")
async def node():
    """Node, with the clients installed exactly as their lock file says."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    if not shutil.which("node", path=path):
        pytest.skip("there is no node")
    if not (FOLDER / "node_modules" / ".package-lock.json").exists():  # which npm writes last
        await run("npm", "ci", "--no-audit", "--no-fund", PATH=path)
    own = {"PATH": path, "TOKEN": toy.TOKEN, **DOCUMENTS}
    return lambda script, url, **env: run("node", f"{script}.mjs", **{**own, "URL": url, **env})


async def situations(node, script, url):
    return {line.pop("situation"): line for line in await node(script, url)}


def codes(found):
    return {error["extensions"]["code"] for error in found}


async def test_all_audits_of_graphql_over_http(served, node):
    """The reference suite has no objection of any weight: MUST, SHOULD and MAY."""
    audits = await node("audit", served.url)
    assert len(audits) == 61
    assert [audit for audit in audits if audit["status"] != "ok"] == []


async def test_the_client_of_graphql_ws(served, node):
    """It gets every result, every error under the operation that failed, and the close codes that it acts on."""
    seen = await situations(node, "ws", served.ws_url)
    assert seen["query"] == seen["tokenKey"] == {"results": TYPENAME, "complete": True}
    assert seen["subscription"] == {"results": TICKS, "complete": True}
    for failing in ("invalid", "syntax", "longSyntax", "unknownOperation", "missingVariable"):
        assert codes(seen[failing]["errors"]) == {"BAD_USER_INPUT"}
    assert codes(seen["unknownDocument"]["errors"]) == {"PERSISTED_QUERY_NOT_FOUND"}
    assert codes(seen["syntaxBesideEndless"]["beside"]["errors"]) == {"BAD_USER_INPUT"}
    assert seen["syntaxBesideEndless"]["still"] is seen["queryBesideEndless"]["still"] is True
    assert seen["queryBesideEndless"]["beside"]["results"] == TYPENAME
    assert (len(seen["leftEarly"]["results"]), seen["leftEarly"]["after"]["results"]) == (1, TYPENAME)
    assert seen["pinged"] == {"pong": True}
    assert (seen["withoutToken"]["closed"], seen["wrongToken"]["closed"]) == (4401, 4403)
    await toy.until(lambda: served.toy.streams == served.endpoint.connections == 0)


async def test_the_client_of_graphql_sse(served, node):
    """It gets every result and error in the stream, and the status of a refusal."""
    seen = await situations(node, "sse", served.url)
    assert seen["query"] == {"results": TYPENAME, "complete": True}
    assert seen["subscription"] == {"results": TICKS, "complete": True}
    for failing in ("invalid", "syntax", "missingVariable"):
        assert codes(seen[failing]["results"][0]["errors"]) == {"BAD_USER_INPUT"}
    assert len(seen["leftEarly"]["results"]) == 1
    assert seen["withoutToken"]["status"] == 401
    await toy.until(lambda: served.toy.streams == served.endpoint.connections == 0)
