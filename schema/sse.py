"""GraphQL over server-sent events: one response for one operation, `id:` carrying the cursor to resume from."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing
from typing import Any

from starlette.types import Receive, Send

from schema.answers import refusal
from schema.errors import Whose
from schema.wire import Answer

HEARTBEAT_SECONDS = 15.0
HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # or nginx holds events back
]
COMMENT = b":\n\n"
COMPLETE = b"event: complete\ndata: \n\n"  # without a data line browsers drop the event


class EventStream:
    """Ends with `complete` when the operation is over, without it when the client is to come back and resume."""

    def __init__(
        self,
        receive: Receive,
        send: Send,
        answers: AsyncGenerator[Answer, None],
        until_revoked: Callable[[], Awaitable[Exception]],
        whose: Whose,
        *,
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
    ) -> None:
        self._receive, self._send = receive, send
        self._answers = answers
        self._until_revoked = until_revoked
        self._whose = whose
        self._heartbeat_seconds = heartbeat_seconds
        self._drained = asyncio.Event()

    def drain(self) -> None:
        self._drained.set()

    async def run(self) -> None:
        await self._send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        await self._write(COMMENT)
        if not self._drained.is_set():
            await self._live()
        await self._send({"type": "http.response.body", "body": b""})

    async def _live(self) -> None:
        produced = asyncio.create_task(self._produce())
        revoked = asyncio.create_task(self._revoked())
        tasks = [produced, revoked, asyncio.create_task(self._gone()), asyncio.create_task(self._left())]
        try:
            done = await self._first(tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if revoked in done and produced not in done:
            await self._write(single(revoked.result()))

    async def _first(self, tasks: Iterable[asyncio.Task[Any]]) -> set[asyncio.Task[Any]]:
        while True:
            done, _ = await asyncio.wait(tasks, timeout=self._heartbeat_seconds, return_when=asyncio.FIRST_COMPLETED)
            if done:
                return done
            await self._write(COMMENT)

    async def _produce(self) -> None:
        async with aclosing(self._answers):
            async for answer in self._answers:
                await self._write(_event(answer))
        await self._write(COMPLETE)

    async def _revoked(self) -> Answer:
        error = await self._until_revoked()
        return refusal(error, self._whose)

    async def _left(self) -> None:
        await self._drained.wait()

    async def _gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def _write(self, chunk: bytes) -> None:
        await self._send({"type": "http.response.body", "body": chunk, "more_body": True})


def single(answer: Answer) -> bytes:
    """A stream that has one event, and is over."""
    return _event(answer) + COMPLETE


def _event(answer: Answer) -> bytes:
    cursor = f"id: {answer.cursor}\n".encode() if answer.cursor and "\n" not in answer.cursor else b""
    return b"event: next\n" + cursor + b"data: " + answer.body + b"\n\n"
