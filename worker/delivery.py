"""What goes between worker and server: the spool to it, in order, however long it is away; messages from it, once."""

import asyncio
import contextlib
from collections import deque
from typing import Any

from worker.server import ACKNOWLEDGE, FINISH, REPORT, Over, Server, Unreachable, pauses
from worker.spool import Spool

COLLECT_SECONDS = 0.1
BATCH_EVENTS = 100
BATCH_BYTES = 512 << 10


class Inbox:
    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.news = asyncio.Event()
        self.waiting: deque[dict[str, Any]] = deque()
        self._seen: set[str] = set()

    def hear(self, answer: dict[str, Any]) -> None:
        """Whatever told it: the subscription or the answer to a report."""
        if answer.get("desiredState") == "STOP":
            self.stop.set()
        for message in answer.get("messages") or answer.get("pendingMessages") or ():
            if message["id"] not in self._seen:
                self._seen.add(message["id"])
                self.waiting.append(message)
                self.news.set()

    async def listen(self, server: Server) -> None:
        """Keeps the subscription open. Raises Over. While it is closed the answers to reports carry the same."""
        attempts = pauses()
        while True:
            with contextlib.suppress(Unreachable):
                async for answer in server.inbox():
                    attempts = pauses()
                    self.hear(answer)
            await asyncio.sleep(next(attempts))


class Delivery:
    def __init__(self, spool: Spool, server: Server, inbox: Inbox, *, heartbeat_seconds: float) -> None:
        self._spool, self._server, self._inbox = spool, server, inbox
        self._heartbeat_seconds = heartbeat_seconds
        self._acknowledgements: deque[dict[str, Any]] = deque()

    def acknowledge(self, message_id: str, turn: int) -> None:
        self._acknowledgements.append({"messageIds": [message_id], "deliveredInTurn": turn})
        self._spool.news.set()

    async def run(self) -> None:
        """Returns when the finish report was taken. Raises Over."""
        attempts, finished = pauses(), False
        while not finished:
            try:
                finished = await self._step()
                attempts = pauses()
            except Unreachable as error:
                await asyncio.sleep(error.retry_after + next(attempts))

    async def beat(self) -> None:
        """Says that the worker lives, whatever else is said or not. Raises Over."""
        while True:
            with contextlib.suppress(Unreachable):
                await self._report([])
            await asyncio.sleep(self._heartbeat_seconds)

    async def _step(self) -> bool:
        """Tell what comes next, or wait for it. True when all was told."""
        self._spool.news.clear()
        if events := self._spool.read(count=BATCH_EVENTS, size_bytes=BATCH_BYTES):
            await self._upload(events[-1]["producerSeq"])
            answer = await self._report(events)
            if answer["acceptedThrough"] < events[0]["producerSeq"]:
                raise Over(f"nothing was accepted: {answer['errors']}") if answer["errors"] else Unreachable("nothing")
            self._spool.accept(answer["acceptedThrough"])
        elif self._acknowledgements:
            await self._server.ask(ACKNOWLEDGE, self._acknowledgements[0])
            self._acknowledgements.popleft()
        elif self._spool.report is not None:
            await self._upload(self._spool.last + 1)
            await self._server.ask(FINISH, self._spool.report)
            return True
        else:
            await self._spool.news.wait()
            await asyncio.sleep(0 if self._spool.report else COLLECT_SECONDS)
        return False

    async def _report(self, events: list[dict[str, Any]]) -> dict[str, Any]:
        answer = await self._server.ask(REPORT, {"events": events, "heartbeat": True})
        self._inbox.hear(answer)
        return answer

    async def _upload(self, through: int) -> None:
        while blob := self._spool.blob(through):
            await self._server.put_blob(*blob)
            self._spool.drop_blob(blob[0])
