"""What goes between worker and server: the spool to it, in order, however long it is away; messages from it, once."""

import asyncio
from collections import deque
from typing import Any

from worker.server import ACKNOWLEDGE, FINISH, REPORT, Over, Refused, Server, Unreachable, insist
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
        if answer.get("desiredState") == "STOP":
            self.stop.set()
        for message in answer.get("messages") or answer.get("pendingMessages") or ():
            if message["id"] not in self._seen:
                self._seen.add(message["id"])
                self.waiting.append(message)
                self.news.set()

    async def listen(self, server: Server) -> None:
        """Until its connection ends. As long as there is none the answers to reports carry the same."""
        async for answer in server.inbox():
            self.hear(answer)
        raise Unreachable("the inbox was closed")


class Delivery:
    def __init__(self, spool: Spool, server: Server, inbox: Inbox) -> None:
        self._spool, self._server, self._inbox = spool, server, inbox
        self._acknowledgements: deque[dict[str, Any]] = deque()

    def acknowledge(self, message_id: str, turn: int) -> None:
        self._acknowledgements.append({"messageIds": [message_id], "deliveredInTurn": turn})
        self._spool.news.set()

    async def run(self) -> None:
        """Returns when the finish report was taken. Raises Over."""
        while not await insist(self._step):
            pass

    async def beat(self, pause_seconds: float) -> None:
        while True:
            await insist(self._report, [])
            await asyncio.sleep(pause_seconds)

    async def _step(self) -> bool:
        self._spool.news.clear()
        await self._upload()
        if events := self._spool.read(count=BATCH_EVENTS, size_bytes=BATCH_BYTES):
            await self._deliver(events)
        elif self._acknowledgements:
            await self._server.ask(ACKNOWLEDGE, self._acknowledgements[0])
            self._acknowledgements.popleft()
        elif self._spool.report is not None:
            await self._finish(self._spool.report)
            return True
        else:
            await self._spool.news.wait()
            await asyncio.sleep(0 if self._spool.report else COLLECT_SECONDS)
        return False

    async def _finish(self, report: dict[str, Any]) -> None:
        """What the server will never take is told once more without what others have said: the work itself counts."""
        try:
            await self._server.ask(FINISH, report)
        except Refused as error:
            summary = f"{report['summary']}\n\nIts output and checks were left out: {error}"
            await self._server.ask(FINISH, report | {"summary": summary, "output": None, "checks": []})

    async def _deliver(self, events: list[dict[str, Any]]) -> None:
        """One that the server will never take is left out. Where it does not say which it is, fewer are tried."""
        first = events[0]["producerSeq"]
        try:
            answer = await self._report(events)
            through, why = answer["acceptedThrough"], "; ".join(error["message"] for error in answer["errors"])
        except Refused as error:
            if len(events) > 1:
                await self._deliver(events[: len(events) // 2])
                return
            through, why = first - 1, str(error)
        if through >= first:
            self._spool.accept(through)
        elif not why:
            raise Unreachable("nothing was taken")
        elif through != first - 1 or "leftOut" in events[0]["payload"]:
            raise Over(f"nothing was accepted: {why}")
        else:
            self._spool.leave_out(events[0], why)

    async def _report(self, events: list[dict[str, Any]]) -> dict[str, Any]:
        answer: dict[str, Any] = await self._server.ask(REPORT, {"events": events, "heartbeat": True})
        self._inbox.hear(answer)
        return answer

    async def _upload(self) -> None:
        while blob := self._spool.blob():
            try:
                await self._server.put_blob(*blob)
                self._spool.drop_blob(blob[0])
            except Refused as error:
                self._spool.cut(blob[0], str(error))
