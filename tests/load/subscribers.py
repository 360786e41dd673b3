"""Subscribers in a process of their own, as light as can be: each keeps account of what it was told, and of faults.

`python -m tests.load.subscribers` takes its order as JSON in its first argument. A line on standard input is a word of
`WORDS`; each is answered by a line of JSON.
"""

import asyncio
import collections
import contextlib
import hashlib
import random
import socket
import struct
import sys
from dataclasses import dataclass, field

import orjson
import uvloop

from tests.load import text_of

TEXT, CLOSE, PING, PONG = 0x81, 0x88, 0x89, 0x8A
PROTOCOL = "graphql-transport-ws"
AGAIN_SECONDS = 0.1
READ_BYTES = 1 << 16
SLOW_BYTES, SLOW_SECONDS = 1024, 1.0
WATCH = """subscription Watch($id: ID!, $after: String) { sandboxEvents(sandboxId: $id, after: $after) {
  cursor caughtUp reset { reason } events { id seq type payload } } }"""
HANDSHAKE = f"""GET /graphql HTTP/1.1
host: 127.0.0.1
connection: Upgrade
upgrade: websocket
sec-websocket-version: 13
sec-websocket-key: MDEyMzQ1Njc4OWFiY2RlZg==
sec-websocket-protocol: {PROTOCOL}

""".replace("\n", "\r\n").encode()


class Lost(Exception):
    """A connection is over; its subscriber comes back."""


@dataclass(kw_only=True)
class Order:
    ports: list[int]  # of the servers that it may come back to
    token: str
    sandboxes: list[str]  # one for each subscriber
    logs: int  # how many each sandbox will have been told
    stay_seconds: float = 0.0  # how long a connection is kept, about; 0: until it is lost
    frames: int = 0  # before so many have come, each connection is left; 0: it may have any number of them
    attempts: int | None = None  # after so many each of them is satisfied, whatever it was told
    slow: int = 0  # so many of them read hardly anything until they are told to hurry
    seed: int = 0


@dataclass
class Subscriber:
    """One who follows one sandbox and comes back with the cursor of what came last."""

    order: Order
    sandbox: str
    slow: bool
    random: random.Random
    seq: int = 0
    logs: int = 0
    after: str | None = None
    digest: bytes = bytes(32)
    caught_up: bool = False
    attempts: int = 0
    wrong: list[str] = field(default_factory=list)
    ends: collections.Counter = field(default_factory=collections.Counter)  # close codes and error codes

    @property
    def satisfied(self) -> bool:
        return self.logs >= self.order.logs or self.attempts == self.order.attempts

    async def run(self) -> None:
        while not self.satisfied:
            stay = self.random.expovariate(1 / self.order.stay_seconds) if self.order.stay_seconds else None
            try:
                async with asyncio.timeout(stay):
                    await self._connection()
            except TimeoutError:
                self.ends["left"] += 1
            except (OSError, Lost) as why:
                self.ends[str(why) if isinstance(why, Lost) else "broken"] += 1
                await asyncio.sleep(AGAIN_SECONDS * self.random.uniform(0.5, 1.5))

    async def _connection(self) -> None:
        self.attempts += 1
        with contextlib.closing(socket.socket()) as line:
            line.setblocking(False)
            # What is not read is thrown away, as by a machine that is switched off.
            line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            if self.slow:
                line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * SLOW_BYTES)
            await asyncio.get_running_loop().sock_connect(line, ("127.0.0.1", self.random.choice(self.order.ports)))
            await self._talk(Wire(line, self))

    async def _talk(self, wire: "Wire") -> None:
        await wire.shake_hands()
        await wire.say({"type": "connection_init", "payload": {"authorization": f"Bearer {self.order.token}"}})
        few = self.random.randrange(self.order.frames) if self.order.frames else None
        while not self.satisfied and few != wire.frames:
            kind, content = await wire.frame()
            if kind == PING:
                await wire.send(PONG, content)
            elif kind == CLOSE:
                raise Lost(str(int.from_bytes(content[:2])))
            else:
                await self._hear(orjson.loads(content), wire)

    async def _hear(self, message: dict, wire: "Wire") -> None:
        if message["type"] == "connection_ack":
            payload = {"query": WATCH, "variables": {"id": self.sandbox, "after": self.after}}
            await wire.say({"type": "subscribe", "id": "1", "payload": payload})
        elif message["type"] == "next" and "errors" not in message["payload"]:
            self._take(message["payload"]["data"]["sandboxEvents"])
        else:
            [error, *_] = message["payload"] if message["type"] == "error" else message["payload"]["errors"]
            if error["extensions"]["code"] == "SLOW_CONSUMER" and error["extensions"]["cursor"] != self.after:
                self.wrong.append(f"told to resume from {error['extensions']['cursor']}, but it was told {self.after}")
            raise Lost(error["extensions"]["code"])

    def _take(self, told: dict) -> None:
        if told["reset"]:
            self.wrong.append(f"reset: {told['reset']['reason']}")
        for event in told["events"]:
            self.seq += 1
            if event["seq"] != self.seq:
                self.wrong.append(f"{event['seq']} came instead of {self.seq}")
                self.seq = event["seq"]
            self.digest = hashlib.sha256(self.digest + event["id"].encode()).digest()
            if event["type"] == "LOG":
                self.logs += 1
                if not event["payload"]["text"].startswith(text_of(self.sandbox, self.logs)):
                    self.wrong.append(f"{event['payload']['text'][:80]!r} is not remark {self.logs}")
        self.after = told["cursor"]
        self.caught_up |= told["caughtUp"]

    def account(self) -> dict:
        """What it would swear to."""
        known = {name: getattr(self, name) for name in ("sandbox", "slow", "seq", "logs", "attempts", "ends")}
        return {**known, "digest": self.digest.hex(), "wrong": self.wrong[:5]}


class Wire:
    """Frames over a socket; a client's are masked, here by a mask that changes nothing."""

    def __init__(self, line: socket.socket, reader: Subscriber) -> None:
        self._line, self._reader = line, reader
        self._loop = asyncio.get_running_loop()
        self._read = bytearray()
        self.frames = 0

    async def shake_hands(self) -> None:
        await self._loop.sock_sendall(self._line, HANDSHAKE)
        while (end := self._read.find(b"\r\n\r\n")) < 0:
            await self._more()
        if b" 101 " not in self._read[:end]:
            raise Lost(self._read[9:12].decode())
        del self._read[: end + 4]

    async def say(self, message: dict) -> None:
        await self.send(TEXT, orjson.dumps(message))

    async def send(self, kind: int, content: bytes) -> None:
        size = bytes([0x80 | len(content)]) if len(content) < 126 else b"\xfe" + len(content).to_bytes(2)
        await self._loop.sock_sendall(self._line, bytes([kind]) + size + bytes(4) + content)

    async def frame(self) -> tuple[int, bytes]:
        await self._at_least(2)
        start, length = 2, self._read[1]
        if length >= 126:
            start += 2 if length == 126 else 8
            await self._at_least(start)
            length = int.from_bytes(self._read[2:start])
        await self._at_least(start + length)
        self.frames += 1
        kind, content = self._read[0], bytes(self._read[start : start + length])
        del self._read[: start + length]
        return kind, content

    async def _at_least(self, size: int) -> None:
        while len(self._read) < size:
            await self._more()

    async def _more(self) -> None:
        data = await self._loop.sock_recv(self._line, SLOW_BYTES if self._reader.slow else READ_BYTES)
        if not data:
            raise Lost("closed")
        self._read += data
        if self._reader.slow:
            await asyncio.sleep(SLOW_SECONDS)


class Crowd:
    def __init__(self, order: Order) -> None:
        chance = random.Random(order.seed)
        self.all = [
            Subscriber(order, sandbox, number < order.slow, random.Random(chance.random()))
            for number, sandbox in enumerate(order.sandboxes)
        ]

    def ready(self) -> bool:
        """Whether everybody has reached the live end once."""
        return all(one.caught_up for one in self.all)

    def satisfied(self) -> bool:
        return all(one.satisfied for one in self.all)

    def count(self) -> dict:
        """How many remarks the slowest has been told, among all and among the quick ones."""
        quick = [one.logs for one in self.all if not one.slow]
        return {"all": min(one.logs for one in self.all), "quick": min(quick, default=0)}

    def hurry(self) -> None:
        for one in self.all:
            one.slow = False

    def accounts(self) -> list[dict]:
        return [one.account() for one in self.all]


WORDS = {
    "ready": Crowd.ready,
    "satisfied": Crowd.satisfied,
    "count": Crowd.count,
    "hurry": Crowd.hurry,
    "accounts": Crowd.accounts,
}


async def main(order: Order) -> None:
    """Until standard input ends."""
    crowd = Crowd(order)
    words = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(words), sys.stdin)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one.run()) for one in crowd.all]
        async for word in words:
            sys.stdout.buffer.write(orjson.dumps(WORDS[word.decode().strip()](crowd)) + b"\n")
            sys.stdout.buffer.flush()
        for task in tasks:
            task.cancel()


if __name__ == "__main__":
    uvloop.run(main(Order(**orjson.loads(sys.argv[1]))))
