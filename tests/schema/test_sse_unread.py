"""Event streams to clients that read nothing: they hold up neither a revocation nor a drain, and leave nothing."""

import asyncio
import contextlib
import json
import secrets
import socket
from urllib.parse import urlsplit

import pytest
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT

from app.cli.lines import HttpLine
from schema.answers import Answer
from schema.errors import Whose
from schema.sse import ABORT, EventStream
from tests.schema import boxes, toy
from tests.servers import until

FLOOD = {"query": "subscription { flood }"}
FOLLOW = "subscription($id: ID!) { sandboxEvents(sandboxId: $id) { events { id payload } } }"
HOUR = 3600
BEFORE = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
LARGE = b"x" * (16 << 20)  # more than any buffer takes


@contextlib.asynccontextmanager
async def asking(url, request, token=toy.TOKEN, before=b""):
    """A client that asks for a stream and then reads nothing, though its machine acknowledges what arrives."""
    body = json.dumps(request)
    head = f"POST /graphql HTTP/1.1\r\nhost: x\r\naccept: text/event-stream\r\nauthorization: Bearer {token}\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    with socket.socket() as line:
        line.setblocking(False)
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await asyncio.get_running_loop().sock_connect(line, ("127.0.0.1", urlsplit(url).port))
        await asyncio.get_running_loop().sock_sendall(line, before + (head + body).encode())
        yield line


def blocked(server):
    """Whether writes to a connection wait until it is read."""
    connections = server.server_state.connections
    return any(one.transport.get_write_buffer_size() > HIGH_WATER_LIMIT for one in connections)


def empty(server):
    return not server.server_state.connections and not server.server_state.tasks


@contextlib.asynccontextmanager
async def one_stream(answers, one, before=b"", **given):
    """A server of this stream, and the stream as soon as there is one; its client is there already."""
    streams = []

    async def app(scope, receive, send):
        if scope["method"] == "GET":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": LARGE})
            return
        abort = scope["extensions"][ABORT]["abort"]
        whose = Whose("-")
        streams.append(
            EventStream(receive, send, answers, lambda: one.until_revoked(None), whose, abort=abort, **given)
        )
        await streams[0].run()

    async with toy.listening(app, http=HttpLine) as server:
        port = server.servers[0].sockets[0].getsockname()[1]
        async with asking(f"http://127.0.0.1:{port}", {}, before=before):
            await toy.until(lambda: streams)
            yield server, streams[0]


async def flood(one):
    with one.stream():
        while True:
            yield Answer(b"x" * 10_000)
            await asyncio.sleep(0)


async def once(one):
    """One answer that no buffer takes, and then silence."""
    with one.stream():
        yield Answer(LARGE)
        await asyncio.Event().wait()


@pytest.mark.parametrize(("source", "beat"), [(flood, HOUR), (once, 0.01)], ids=["answers", "heartbeats"])
async def test_a_write_that_does_not_get_through_ends_the_connection(source, beat):
    """Whatever it is that is written: source, task and socket are gone, though the client is still there."""
    one = toy.Toy()
    async with one_stream(source(one), one, heartbeat_seconds=beat, write_seconds=0.1) as (server, _):
        await toy.until(lambda: one.streams == 0 and empty(server))


@pytest.mark.parametrize("before", [b"", BEFORE], ids=["begun", "not-begun"])
@pytest.mark.parametrize("source", [flood, once])
@pytest.mark.parametrize("end", ["drained", "revoked"])
async def test_what_ends_a_stream_is_heard_behind_a_blocked_write(end, source, before):
    """Long before a write is given up: of an answer, of a heartbeat, or when not even the headers got through."""
    one = toy.Toy()
    often = {"heartbeat_seconds": 0.01, "write_seconds": HOUR}
    async with one_stream(source(one), one, before, **often) as (server, stream):
        await toy.until(lambda: blocked(server))
        if end == "drained":
            stream.drain()
        else:
            one.revoked.set()
        await toy.until(lambda: one.streams == 0 and empty(server))


@pytest.mark.parametrize("http", [HttpLine, "h11"])
@pytest.mark.parametrize("end", ["drained", "revoked"])
async def test_its_place_is_free(end, http, caplog):
    """Behind every server, also behind one that cannot cut off a connection."""
    async with toy.serve(http=http) as served, asking(served.url, FLOOD) as line:
        await toy.until(lambda: blocked(served.server))
        if end == "drained":
            served.endpoint.drain()
        else:
            served.toy.revoked.set()
        await toy.until(lambda: served.toy.streams == served.endpoint.connections == 0)
        await toy.until(lambda: not served.server.server_state.tasks)
        assert served.endpoint._access.room.taken == 0
        if http is HttpLine:
            await toy.until(lambda: empty(served.server))
            assert caplog.records == []
        line.close()
        await toy.until(lambda: empty(served.server))


async def test_a_revoked_token_leaves_nothing(world, ada, box):
    """No group, no feed, no membership that is watched and no connection to the database is left behind."""
    server = world.server
    world._listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    made = await ada.change("createAccessToken", "accessToken { id } token", name="second")
    async with asking(world.url, {"query": FOLLOW, "variables": {"id": box.id}}, made["token"]):
        await until(lambda: left(server) == [1] * 6 + [0])
        await box.report(*(box.event("LOG", {"text": secrets.token_hex(30_000)}) for _ in range(10)))
        await until(lambda: blocked(world.process))
        await ada.do("revokeAccessToken", "accessToken { id }", tokenId=made["accessToken"]["id"])
        await until(lambda: left(server) == [0] * 7)


def left(server):
    hub, room = server.endpoint._answers._hub, server.endpoint._access.room
    kept = [hub.groups, server.feeds.count, len(server.rights._ears), len(server.gate._tokens.ids)]
    return [*kept, room.taken, server.endpoint.connections, server.db.connections_used]


@pytest.fixture
async def box(ada, apollo):
    return await boxes.running(ada, apollo)
