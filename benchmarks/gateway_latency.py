"""What the model gateway adds: time to the first byte, and the rate of a long answer, beside asking upstream itself."""

import asyncio
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

from app import attempts, auth, transactions
from app.attempts import Fleet
from app.db import Database
from app.postgres import attached
from app.secrets import Keys
from app.settings import Settings
from benchmarks import rows
from benchmarks.processes import Measured, omoi, peer

CALLS = 400
WARM_CALLS = 50
BODY = b"x" * 60_000  # the first request of an agent is about as long
LONG_BYTES = 100_000_000
LATENCY_GOAL_MS = 5.0
FLEET = Fleet(provider="nowhere", machines=1, deployment="bench", life=timedelta(hours=1))


def main() -> None:
    with peer("plain_model") as upstream:
        env = {"ANTHROPIC_BASE_URL": f"http://127.0.0.1:{upstream.port}", "ORCHESTRATOR_ENABLED": "false"}
        with omoi(ANTHROPIC_API_KEY="any", **env) as server:
            asyncio.run(_measure(upstream, server, asyncio.run(_token(server))))


async def _measure(upstream: Measured, server: Measured, token: str) -> None:
    async with (
        _client(upstream.port, "/v1/messages", token) as plain,
        _client(server.port, "/model/v1/messages", token) as ours,
    ):
        times: dict[Client, list[float]] = {plain: [], ours: []}
        for number in range(WARM_CALLS + CALLS):
            for client, taken in times.items():
                milliseconds = await client.first_byte_ms()
                if number >= WARM_CALLS:
                    taken.append(milliseconds)
        for name, taken in (("upstream", times[plain]), ("gateway", times[ours])):
            print(f"{name:8} first byte: median {statistics.median(taken):5.2f} ms, 95 % {_worst(taken):5.2f} ms")
        added = statistics.median(times[ours]) - statistics.median(times[plain])
        print(f"added {added:.2f} ms (95 %: {_worst(times[ours]) - _worst(times[plain]):.2f}), goal {LATENCY_GOAL_MS}")
        rates = [await client.megabytes_per_second() for client in (plain, ours)]
        print(f"long answer: upstream {rates[0]:.0f} MB/s, gateway {rates[1]:.0f} MB/s")


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str, token: str) -> None:
        self._reader = reader
        self._writer = writer
        self._path = path
        self._token = token

    async def first_byte_ms(self) -> float:
        started = time.perf_counter()
        self._ask(0)
        await self._reader.readuntil(b"message_start")
        taken = time.perf_counter() - started
        await self._reader.readuntil(b"0\r\n\r\n")
        return taken * 1_000

    async def megabytes_per_second(self) -> float:
        started = time.perf_counter()
        self._ask(LONG_BYTES)
        size, tail = 0, b""
        while not tail.endswith(b"0\r\n\r\n"):
            piece = await self._reader.read(1 << 20)
            size, tail = size + len(piece), (tail + piece)[-8:]
        return size / 1e6 / (time.perf_counter() - started)

    def _ask(self, answer_bytes: int) -> None:
        lines = [
            f"POST {self._path} HTTP/1.1",
            "host: 127.0.0.1",
            f"x-api-key: {self._token}",
            f"x-answer-bytes: {answer_bytes}",
            f"content-length: {len(BODY)}",
        ]
        self._writer.write("\r\n".join([*lines, "", ""]).encode() + BODY)


@asynccontextmanager
async def _client(port: int, path: str, token: str) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=4 << 20)
    yield Client(reader, writer, path, token)
    writer.close()


async def _token(server: Measured) -> str:
    """Of a sandbox that has a row and no machine."""
    ticket = 'mutation($p: ID!) { createTicket(input: {projectId: $p, title: "Bench"}) { ticket { id } } }'
    rows.ask(server, ticket, p=rows.project(server))
    async with attached(Path(server.data), holder="benchmark") as url:
        db = Database(url, connections=1)
        async with transactions.begin(db, None, auth.SYSTEM, request_id="benchmark") as tx:
            [sandbox] = await attempts.claim(tx, FLEET)
        await db.close()
    return Keys.load(Settings(data=Path(server.data))).sandbox_token(sandbox.id, sandbox.attempt)


def _worst(taken: list[float]) -> float:
    return sorted(taken)[int(len(taken) * 0.95)]


if __name__ == "__main__":
    main()
