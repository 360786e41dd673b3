"""The toy server, and small ways to speak to it."""

import asyncio
import contextlib
import json

import httpx
import pytest
import structlog
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from tests.schema import toy


@pytest.fixture
def logs():
    """What was logged during the test."""
    with structlog.testing.capture_logs() as entries:
        yield entries


@pytest.fixture
async def served(logs):
    async with toy.serve() as running:
        yield running


@pytest.fixture
async def client():
    async with httpx.AsyncClient(headers={"authorization": f"Bearer {toy.TOKEN}"}) as one:
        yield one


class Talk:
    """One socket, spoken to in messages."""

    def __init__(self, socket):
        self.socket = socket

    async def say(self, message):
        await self.socket.send(message if isinstance(message, str | bytes) else json.dumps(message))

    async def subscribe(self, id_, payload):
        await self.say({"type": "subscribe", "id": id_, "payload": payload})

    async def hear(self):
        async with asyncio.timeout(5):
            frame = await self.socket.recv()
        assert isinstance(frame, str)
        return json.loads(frame)

    async def closed(self):
        """The code and reason with which the server closes; what it still says before that is passed over."""
        with contextlib.suppress(ConnectionClosed):
            async with asyncio.timeout(5):
                while True:
                    await self.socket.recv()
        return self.socket.close_code, self.socket.close_reason


@pytest.fixture
def talk():
    """Open a socket; unless told otherwise with the token, and initialised."""

    @contextlib.asynccontextmanager
    async def open_(served, *, payload=None, init=True, headers=None, subprotocols=("graphql-transport-ws",)):
        async with connect(
            served.ws_url,
            subprotocols=list(subprotocols) or None,
            additional_headers=headers or {},
            close_timeout=1,
        ) as socket:
            talking = Talk(socket)
            if init:
                await talking.say({"type": "connection_init", "payload": payload or {"token": toy.TOKEN}})
                assert await talking.hear() == {"type": "connection_ack"}
            yield talking

    return open_
