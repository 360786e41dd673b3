"""A request's body as it arrives, and the moment at which its client leaves."""

import asyncio

from starlette.types import Receive

SILENCE_SECONDS = 60  # of a client in the middle of its request


class ClientGone(Exception):
    """The client left before its request was complete."""


class Body:
    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._ended = asyncio.Event()

    async def chunk(self) -> bytes | None:
        """The next piece; None behind the end. TimeoutError when nothing comes for too long."""
        if self._ended.is_set():
            return None
        async with asyncio.timeout(SILENCE_SECONDS):
            message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        if not message.get("more_body", False):
            self._ended.set()
        return bytes(message.get("body", b""))

    async def left(self) -> None:
        """Waits until somebody has read the body to its end, and from then on until the client leaves."""
        await self._ended.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass
