"""Many subscribers over WebSockets in a process of their own, which walk frames without reading most of them."""

import asyncio
import contextlib
import json
import multiprocessing
import os
import re
import time
from array import array
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import uvloop

from benchmarks import processes
from benchmarks.processes import Measured

AT_ONCE = 50  # connections that are being made
LOOK_SECONDS = 0.0005
PATIENCE_SECONDS = 120
SPAWN = multiprocessing.get_context("spawn")
READY, FRAMES, EVENTS, LOST = range(4)
SEQ = re.compile(rb'"seq": ?(\d+)')
TEXT, CLOSE, PING, PONG = 0x81, 0x88, 0x89, 0x8A


class BenchmarkBroken(Exception):
    """What was measured did not do what it should."""


@dataclass
class Watchers:
    """Subscribers in another process: how much has come there, from the first answer after they caught up."""

    process: Any
    counts: Any
    pipe: Any
    size: int

    @property
    def frames(self) -> int:
        return int(self.counts[FRAMES])

    @property
    def events(self) -> int:
        """Of those connections alone whose frames are read."""
        return int(self.counts[EVENTS])

    async def reach(self, wanted: int, counted: int = FRAMES) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while self.counts[counted] < wanted:
                if self.counts[LOST] or not self.process.is_alive():
                    raise BenchmarkBroken(f"{self.counts[LOST]} connections were closed, or ended by an error")
                await asyncio.sleep(LOOK_SECONDS)

    def ask(self, what: str) -> Any:
        self.pipe.send(what)
        return self.pipe.recv()

    def sample(self) -> bytes:
        """The newest frame that was read."""
        frame: bytes = self.ask("sample")
        return frame

    def arrivals(self) -> list[tuple[int, float]]:
        """Each event that was read: its seq, and when it came by the clock that all processes share."""
        seqs, moments = self.ask("arrivals")
        return list(zip(seqs, moments, strict=True))


@contextlib.asynccontextmanager
async def watching(
    server: Measured, query: str, variables: Sequence[dict[str, Any]], *, read: int = 1
) -> AsyncIterator[Watchers]:
    """A connection with one subscription for each of these variables, caught up; of the first few frames are read."""
    counts = SPAWN.RawArray("q", 4)
    pipe, theirs = SPAWN.Pipe()
    wanted = Wanted(server.port, server.token, query, list(variables), read)
    process = SPAWN.Process(target=_run, args=(wanted, counts, theirs), daemon=True)
    process.start()
    try:
        watchers = Watchers(process, counts, pipe, len(variables))
        await watchers.reach(len(variables), READY)
        yield watchers
    finally:
        process.terminate()
        process.join()


@dataclass(frozen=True)
class Wanted:
    port: int
    token: str
    query: str
    variables: list[dict[str, Any]]
    read: int  # of how many the frames are read


def _run(wanted: Wanted, counts: Any, pipe: Any) -> None:
    processes.step_aside()
    uvloop.run(_all(wanted, counts, pipe))


async def _all(wanted: Wanted, counts: Any, pipe: Any) -> None:
    loop = asyncio.get_running_loop()
    log = Log()
    watchers = [
        Watcher(wanted.token, {"query": wanted.query, "variables": some}, counts, log if number < wanted.read else None)
        for number, some in enumerate(wanted.variables)
    ]
    for start in range(0, len(watchers), AT_ONCE):
        some = watchers[start : start + AT_ONCE]
        await asyncio.gather(*(loop.create_connection(lambda one=one: one, "127.0.0.1", wanted.port) for one in some))
        await asyncio.gather(*(one.caught_up for one in some))
        counts[READY] += len(some)
    answer = {"sample": lambda: log.newest, "arrivals": lambda: (log.seqs, log.moments)}
    loop.add_reader(pipe.fileno(), lambda: pipe.send(answer[pipe.recv()]()))
    os.set_blocking(pipe.fileno(), True)  # the loop has changed that, and an answer may be large
    await asyncio.Event().wait()


class Log:
    """What those saw whose frames are read."""

    def __init__(self) -> None:
        self.newest = b""
        self.seqs, self.moments = array("q"), array("d")

    def note(self, frame: bytes, after: int | None) -> int | None:
        """Returns the seq of its last event; a hole, or an event that comes twice, ends the benchmark."""
        self.newest, now = frame, time.monotonic()
        for found in SEQ.findall(frame):
            seq = int(found)
            if after is not None and seq != after + 1:
                raise BenchmarkBroken(f"{seq} came after {after}")
            self.seqs.append(seq)
            self.moments.append(now)
            after = seq
        return after


class Watcher(asyncio.Protocol):
    """One connection: the handshake, `connection_init`, `subscribe`, and then frame after frame."""

    def __init__(self, token: str, payload: dict[str, Any], counts: Any, log: Log | None) -> None:
        self._init = {"type": "connection_init", "payload": {"authorization": f"Bearer {token}"} if token else {}}
        self._subscribe = {"id": "1", "type": "subscribe", "payload": payload}
        self._counts = counts
        self._log = log
        self._seq: int | None = None
        self._rest = b""
        self._upgraded = self._acknowledged = self._live = False
        self.caught_up = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        lines = [
            "GET /graphql HTTP/1.1",
            "host: 127.0.0.1",
            "connection: Upgrade",
            "upgrade: websocket",
            "sec-websocket-version: 13",
            "sec-websocket-key: MDEyMzQ1Njc4OWFiY2RlZg==",
            "sec-websocket-protocol: graphql-transport-ws",
        ]
        transport.write("\r\n".join([*lines, "", ""]).encode())

    def connection_lost(self, _error: Exception | None) -> None:
        self._counts[LOST] += 1

    def data_received(self, data: bytes) -> None:
        if self._rest:
            data = self._rest + data
        at = 0 if self._upgraded else self._answered(data)
        end = len(data)
        while at + 2 <= end:
            length, start = data[at + 1], at + 2  # a server's frames have no mask
            if length >= 126:
                start += 2 if length == 126 else 8
                length = int.from_bytes(data[at + 2 : start], "big")
            if start + length > end:
                break
            self._frame(data[at], data, start, start + length)
            at = start + length
        self._rest = data[at:]

    def _answered(self, data: bytes) -> int:
        head, found, _ = data.partition(b"\r\n\r\n")
        if not found:
            return 0
        if b" 101 " not in head:
            raise BenchmarkBroken(head.decode())
        self._upgraded = True
        self._say(self._init)
        return len(head) + 4

    def _frame(self, kind: int, data: bytes, start: int, end: int) -> None:
        if kind == TEXT and self._live:
            self._counts[FRAMES] += 1
            if self._log is not None:
                known = len(self._log.seqs)
                self._seq = self._log.note(data[start:end], self._seq)
                self._counts[EVENTS] += len(self._log.seqs) - known
        elif kind == TEXT:
            self._begin(json.loads(data[start:end]))
        elif kind == PING:
            self._send(PONG, data[start:end])

    def _begin(self, message: dict[str, Any]) -> None:
        if message["type"] == "connection_ack":
            self._say(self._subscribe)
        elif message["type"] != "next" or "errors" in message["payload"]:
            raise BenchmarkBroken(str(message))
        elif next(iter(message["payload"]["data"].values()))["caughtUp"]:
            self._live = True
            self.caught_up.set_result(None)

    def _say(self, message: dict[str, Any]) -> None:
        self._send(TEXT, json.dumps(message).encode())

    def _send(self, kind: int, content: bytes) -> None:
        """Masked, as a client has to, by a mask that changes nothing."""
        size = bytes([0x80 | len(content)]) if len(content) < 126 else b"\xfe" + len(content).to_bytes(2, "big")
        self._transport.write(bytes([kind]) + size + bytes(4) + content)
