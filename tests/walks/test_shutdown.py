"""How a server ends: in order when it is asked, at once when it is asked twice, and without leaving anything behind."""

import asyncio
import contextlib
import json
import os
import signal

import asyncpg

from app.auth import MARK
from tests.servers import postgres_of, until, up

FEED = "subscription($id: ID!) { projectActivity(projectId: $id) { caughtUp } }"
MAKE = 'mutation { createProject(input: {name: "Apollo"}) { project { id } } }'


@contextlib.asynccontextmanager
async def serving(data, **environment):
    """A server with a project, and somebody signed in."""
    async with up(data, **environment) as server:
        await server.sign_in()
        made = (await server.ask(MAKE))["data"]["createProject"]["project"]
        server.subscribe = {"query": FEED, "variables": {"id": made["id"]}}
        yield server


@contextlib.asynccontextmanager
async def subscribed(server):
    """A subscription over WebSocket that has had its first payload."""
    async with server.socket() as ws:
        await ws.send(json.dumps({"type": "subscribe", "id": "1", "payload": server.subscribe}))
        assert json.loads(await ws.recv())["type"] == "next"
        yield ws


async def test_everybody_is_sent_away_in_order(data):
    """SIGTERM: sockets close with 1012, event streams end without `complete`, Postgres goes, and the status is 0."""
    async with serving(data) as server, subscribed(server) as ws:
        headers = {"accept": "text/event-stream"}
        async with server.http.stream("POST", "/graphql", json=server.subscribe, headers=headers) as stream:
            lines = stream.aiter_lines()
            await anext(line async for line in lines if line.startswith("event: next"))
            ending = asyncio.create_task(server.terminate())
            await ws.wait_closed()
            assert ws.close_code == 1012
            assert [line async for line in lines if line.startswith("event:")] == []
            assert await ending == 0
        assert not postgres_of(data)
        assert server.log.read_text() == ""


@contextlib.asynccontextmanager
async def stuck_request(server, data):
    """A request that waits in the database until the block ends; it is the task that holds its answer."""
    [socket_folder] = data.glob("socket")

    blocker = await asyncpg.connect(host=str(socket_folder), port=5432, user="postgres", database="omoi")
    await blocker.execute("BEGIN; LOCK TABLE projects")
    asked = asyncio.create_task(server.http.post("/graphql", json={"query": "{ projects { nodes { name } } }"}))

    async def waits():
        return await blocker.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted")

    await until(waits)
    try:
        yield asked, blocker
    finally:
        blocker.terminate()
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)


async def test_running_request_finishes(data):
    """Who has asked before SIGTERM still gets the answer."""
    async with serving(data) as server, stuck_request(server, data) as (asked, blocker):
        ending = asyncio.create_task(server.terminate())
        await until(lambda: refuses(server))
        await blocker.execute("COMMIT")
        answer = await asked
        assert answer.json()["data"]["projects"]["nodes"] == [{"name": "Apollo"}]
        assert await ending == 0


async def refuses(server):
    """No new connection is taken."""
    host, port = server.address.removeprefix("http://").split(":")
    try:
        _, writer = await asyncio.open_connection(host, int(port))
    except OSError:
        return True
    writer.close()
    return False


async def test_hanging_request_does_not_hold_it_up(data):
    """A request that does not end is given up after OMOI_DRAIN_SECONDS; the server still ends in order."""
    async with serving(data, OMOI_DRAIN_SECONDS=1) as server, stuck_request(server, data):
        server.process.send_signal(signal.SIGTERM)
        assert await server.ended(10) == 0
        assert not postgres_of(data)


async def test_second_signal_ends_it_at_once(data):
    """Who asks twice does not wait for a request that hangs; Postgres goes by itself."""
    async with serving(data) as server, stuck_request(server, data):
        server.process.send_signal(signal.SIGTERM)
        await until(lambda: refuses(server))
        server.process.send_signal(signal.SIGTERM)
        assert await server.ended(2) == 1
        await until(lambda: not postgres_of(data))


async def test_client_that_does_not_read(data):
    """Somebody who asks for a lot and takes nothing is no reason to stay."""
    async with serving(data, OMOI_DRAIN_SECONDS=1) as server:
        host, port = server.address.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port), limit=1)
        body = json.dumps({"query": "{ __schema { types { name description fields { name description } } } }"})
        head = f"POST /graphql HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        head += "".join(f"{name}: {server.http.headers[name]}\r\n" for name in ("cookie", "origin", MARK)) + "\r\n"
        writer.write((head + body).encode() * 200)
        writer.transport.pause_reading()
        async with subscribed(server) as ws:
            ws.transport.pause_reading()
            server.process.send_signal(signal.SIGTERM)
            assert await server.ended(10) == 0
            ws.transport.resume_reading()
        writer.transport.abort()
        assert not postgres_of(data)


async def test_ctrl_c_is_as_good(data):
    """SIGINT ends it like SIGTERM does."""
    async with up(data) as server:
        os.kill(server.process.pid, signal.SIGINT)
        assert await server.ended() == 0
