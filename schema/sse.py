"""GraphQL over server-sent events: one response for one operation, `id:` carrying the cursor to resume from."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

from starlette.types import Receive, Send

from schema.answers import refusal
from schema.errors import Whose
from schema.wire import Answer

HEARTBEAT_SECONDS = 15.0
WRITE_SECONDS = 40.0  # in which the client makes room for one write; over a socket as long passes without a pong
LAST_WORD_SECONDS = 0.5  # for the same, when the stream is to end now
ABORT = "omoi.abort"  # a server's extension of ASGI: `abort` drops a connection, and what it still had to write
HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # or nginx holds events back
]
COMMENT = b":\n\n"
COMPLETE = b"event: complete\ndata: \n\n"  # without a data line browsers drop the event

Abort = Callable[[], None]


class EventStream:
    """Ends with `complete` when the operation is over, without it when the client is to come back and resume.

    Servers let a write wait until the client reads. One who never does is given up: at once when the stream is to end,
    or else after `write_seconds`.
    """

    def __init__(
        self,
        receive: Receive,
        send: Send,
        answers: AsyncGenerator[Answer, None],
        until_revoked: Callable[[], Awaitable[Exception]],
        whose: Whose,
        *,
        abort: Abort | None = None,
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
        write_seconds: float = WRITE_SECONDS,
    ) -> None:
        self._receive, self._send = receive, send
        self._answers = answers
        self._until_revoked = until_revoked
        self._whose = whose
        self._abort = abort
        self._heartbeat_seconds, self._write_seconds = heartbeat_seconds, write_seconds
        self._drained: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._writing = asyncio.Lock()
        self._started = False

    def drain(self) -> None:
        if not self._drained.done():
            self._drained.set_result(None)

    async def run(self) -> None:
        try:
            await self._live()
        except OSError:  # a TimeoutError too
            await self._give_up()

    async def _live(self) -> None:
        works = [asyncio.create_task(work) for work in (self._produce(), self._beat(), self._gone())]
        revoked = asyncio.create_task(self._revoked())
        tasks: list[asyncio.Future[Any]] = [*works, revoked]
        try:
            await asyncio.wait([*tasks, self._drained], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        over = [work.result() for work in works if not work.cancelled()]  # by themselves, before they were told
        if not over:
            await self._take_leave(b"" if revoked.cancelled() else single(revoked.result()))

    async def _take_leave(self, last_word: bytes) -> None:
        async with asyncio.timeout(LAST_WORD_SECONDS):
            await self._write(last_word, more=False)

    async def _give_up(self) -> None:
        """Without an abort the server closes the connection, which stays until the client has read all or has left."""
        if self._abort is not None:
            self._abort()
            await self._gone()

    async def _produce(self) -> None:
        await self._write(COMMENT)
        if self._drained.done():
            await self._write(b"", more=False)
            return
        async with aclosing(self._answers):
            async for answer in self._answers:
                await self._write(_event(answer))
        await self._write(COMPLETE, more=False)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._heartbeat_seconds)
            await self._write(COMMENT)

    async def _revoked(self) -> Answer:
        error = await self._until_revoked()
        return refusal(error, self._whose)

    async def _gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def _write(self, chunk: bytes, *, more: bool = True) -> None:
        async with self._writing, asyncio.timeout(self._write_seconds):
            if not self._started:
                await self._send({"type": "http.response.start", "status": 200, "headers": HEADERS})
                self._started = True
            await self._send({"type": "http.response.body", "body": chunk, "more_body": more})


def single(answer: Answer) -> bytes:
    """A stream that has one event, and is over."""
    return _event(answer) + COMPLETE


def _event(answer: Answer) -> bytes:
    cursor = f"id: {answer.cursor}\n".encode() if answer.cursor and "\n" not in answer.cursor else b""
    return b"event: next\n" + cursor + b"data: " + answer.body + b"\n\n"
