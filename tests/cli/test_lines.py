"""What a WebSocket's connection does beyond Uvicorn's: texts that are sent at once."""

import contextlib

import pytest
from websockets.asyncio.client import connect

from app.cli.lines import WebSocketLine
from schema.socket import SEND_NOW
from tests.schema import toy


@contextlib.asynccontextmanager
async def served(app):
    async with toy.listening(app, ws=WebSocketLine, ws_per_message_deflate=False) as server:
        yield f"ws://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"


def sends_now(scope):
    return scope["extensions"][SEND_NOW]["send"]


@pytest.mark.parametrize("length", [0, 1, 125, 126, 65_535, 65_536])
async def test_a_text_of_any_length_arrives_whole(length):
    """At the borders of the three ways to write a length, and between messages that are sent as usual."""
    text = "x" * length

    async def app(scope, receive, send):
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.send", "text": "before"})
        assert sends_now(scope)(text.encode())
        await send({"type": "websocket.send", "text": "after"})
        await receive()
        await receive()

    async with served(app) as url, connect(url) as socket:
        assert [await socket.recv() for _ in range(3)] == ["before", text, "after"]


async def test_nothing_is_sent_at_once_to_who_lags_behind():
    """It has to wait, like everything; what was taken before comes whole, and nothing else does."""
    taken = []

    async def app(scope, receive, send):
        await send({"type": "websocket.accept"})
        while sends_now(scope)(bytes(1000)):
            taken.append(1000)
        await receive()
        await send({"type": "websocket.send", "text": "the end"})

    async with served(app) as url, connect(url, max_queue=1) as socket:
        socket.transport.pause_reading()
        await toy.until(lambda: len(taken) > 10)
        socket.transport.resume_reading()
        heard = [await socket.recv() for _ in taken]
        assert [len(text) for text in heard] == taken
        assert await socket.recv() == "the end"


async def test_nothing_is_sent_at_once_outside_of_a_conversation():
    """Neither before the handshake is over, nor after the close: a text there would break the protocol."""
    told = []

    async def app(scope, receive, send):
        told.append(sends_now(scope)(b"too early"))
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.close", "code": 4000})
        told.append(sends_now(scope)(b"too late"))

    async with served(app) as url, connect(url) as socket:
        await socket.wait_closed()
        assert (socket.close_code, told) == (4000, [False, False])
