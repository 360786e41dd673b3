"""Request ids: the caller's own when it is harmless, and always one that answers, errors and logs share."""

import asyncio
import json

import pytest
import structlog
from websockets.asyncio.client import connect

from tests.servers import shared_world


@pytest.fixture(scope="module")
async def world(postgres):
    async with shared_world(postgres, access_log=True) as running:
        yield running


async def ask(world, request_id):
    headers = {} if request_id is None else {"x-request-id": request_id}
    answer = await world.http.post("/graphql", json={"query": "{ viewer { kind } }"}, headers=headers)
    [error] = answer.json()["errors"]
    assert answer.headers["x-request-id"] == error["extensions"]["requestId"]
    return answer.headers["x-request-id"]


@pytest.mark.parametrize("given", ["a", "0190-ab_CD.ef", "x" * 64])
async def test_harmless_id_is_kept(world, given):
    """A caller finds its own id in the answer and in the errors."""
    assert await ask(world, given) == given


@pytest.mark.parametrize("given", [None, "", "x" * 65, "x" * 30_000, "a b", "a;b", "<script>", "é".encode(), b"a\tb"])
async def test_harmful_id_is_replaced(world, given):
    """What could break a log or a page becomes an id of ours, a new one each time."""
    first, second = await ask(world, given), await ask(world, given)
    assert first != second
    assert given not in (first, first.encode())


@pytest.mark.parametrize("broken", ["a\r\n b: c", "a\nb: c", "a\x00b"])
async def test_broken_id_reaches_no_log(world, broken):
    """A header that breaks lines is replaced, or is no request at all; it never comes back."""
    host, port = world.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    with structlog.testing.capture_logs() as logs:
        writer.write(f"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\nx-request-id: {broken}\r\n\r\n".encode())
        answer = (await reader.read()).decode()
    writer.close()
    assert "HTTP/1.1 400" in answer or "x-request-id: " in answer
    for text in (answer, *(entry.get("request_id", "") for entry in logs)):
        assert "b: c" not in text
        assert "\0" not in text


async def test_every_request_is_logged_once(world):
    """The access log has what was asked, by path only: a query string may hold a secret."""
    with structlog.testing.capture_logs() as logs:
        await world.http.get("/sign-in", params={"token": "omoi_link_canary"}, headers={"x-request-id": "mine"})
    [entry] = [entry for entry in logs if entry["event"] == "request_served"]
    assert entry["milliseconds"] > 0
    del entry["milliseconds"]
    assert entry == {
        "event": "request_served",
        "log_level": "info",
        "request_id": "mine",
        "method": "GET",
        "path": "/sign-in",
        "status": 403,
    }


async def test_sockets_have_an_id(world):
    """The handshake's answer names the id as well."""
    async with connect(world.url.replace("http", "ws") + "/graphql", subprotocols=["graphql-transport-ws"]) as ws:
        assert ws.response.headers["x-request-id"]
        await ws.send(json.dumps({"type": "connection_init"}))
