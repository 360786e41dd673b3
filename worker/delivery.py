"""Brings the spool to the server, in order, however long the server is away."""

import asyncio
import contextlib
import sys
from collections.abc import Callable
from typing import Any

from worker.server import ACKNOWLEDGE, FINISH, REPORT, Refused, Server, Unreachable, pauses
from worker.spool import Spool

COLLECT_SECONDS = 0.1
BATCH_EVENTS = 100
BATCH_BYTES = 512 << 10
BARE = {"success", "summary", "branch", "commit", "failureCode"}


class Delivery:
    def __init__(
        self, spool: Spool, server: Server, hear: Callable[[dict[str, Any]], None], *, heartbeat_seconds: float
    ) -> None:
        self._spool = spool
        self._server = server
        self._hear = hear
        self._heartbeat = heartbeat_seconds
        self.failures = 0  # attempts that found no server
        self._spoken = 0.0  # when the server last answered a report
        self._acknowledgements: list[dict[str, Any]] = []
        self._instead: dict[int, dict[str, Any]] = {}  # for events that the server refuses
        self._batch = BATCH_EVENTS
        self._pauses = pauses()

    def acknowledge(self, message_id: str, turn: int) -> None:
        self._acknowledgements.append({"messageIds": [message_id], "deliveredInTurn": turn})
        self._spool.news.set()

    async def run(self) -> None:
        """Returns when the finish report was taken. Raises Over."""
        while True:
            self._spool.news.clear()
            entries = self._spool.read(count=self._batch, size_bytes=BATCH_BYTES)
            try:
                if entries:
                    await self._send(entries)
                elif self._acknowledgements:
                    await self._server.ask(ACKNOWLEDGE, self._acknowledgements[0])
                    self._acknowledgements.pop(0)
                elif self._spool.report is not None:
                    return await self._finish(self._spool.report)
                else:
                    await self._spool.news.wait()
                    await asyncio.sleep(0 if self._spool.report else COLLECT_SECONDS)
                    continue
                self._pauses = pauses()
            except Unreachable as error:
                self.failures += 1
                pause = next(self._pauses)
                await asyncio.sleep(pause if error.retry_after is None else error.retry_after + pause)
            except Refused as error:
                self._give_way(entries, str(error))

    async def beat(self) -> None:
        """Says that the worker lives whenever nothing else has said so lately."""
        clock = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(max(0.01, self._spoken + self._heartbeat - clock()))
            if self._spoken + self._heartbeat <= clock():
                self._spoken = clock()
                with contextlib.suppress(Unreachable, Refused):
                    await self._report([])

    async def _send(self, entries: list[dict[str, Any]]) -> None:
        for entry in entries:
            for name in entry["blobs"]:
                await self._upload(name)
        answer = await self._report([self._instead.get(e["event"]["producerSeq"], e["event"]) for e in entries])
        before = self._spool.accepted
        self._spool.accept(answer["acceptedThrough"])
        if self._spool.accepted <= before:
            if answer["errors"]:
                raise Refused(answer["errors"][0]["message"])
            raise Unreachable(f"nothing was accepted after {answer['acceptedThrough']}")
        self._batch = BATCH_EVENTS

    async def _report(self, events: list[dict[str, Any]]) -> dict[str, Any]:
        answer = await self._server.ask(REPORT, {"events": events, "heartbeat": True})
        self._spoken = asyncio.get_running_loop().time()
        self._hear(answer)
        return answer

    async def _upload(self, name: str) -> None:
        zipped = await asyncio.to_thread(self._spool.blob, name)
        if zipped is not None:
            await self._server.put_blob(name, zipped)

    def _give_way(self, entries: list[dict[str, Any]], why: str) -> None:
        """One refused event must not hold up all that follow: something that will be taken stands in for it."""
        sys.stderr.write(f"the server refused {len(entries)} events: {why}\n")
        if not entries:
            self._acknowledgements = self._acknowledgements[1:]
        elif self._batch > 1:
            self._batch = 1
        else:
            event = entries[0]["event"]
            text = f"An event of type {event['type']} was not accepted: {why}"
            self._instead[event["producerSeq"]] = event | {"type": "LOG", "payload": {"text": text, "level": "error"}}

    async def _finish(self, report: dict[str, Any]) -> None:
        try:
            if name := report.get("transcriptBlob"):
                await self._upload(name)
            await self._server.ask(FINISH, report)
        except Refused as error:
            sys.stderr.write(f"the server refused the report: {error}\n")
            bare = {key: value for key, value in report.items() if key in BARE}
            await self._server.ask(FINISH, bare)
