"""Events stored per second through `reportEvents`, beside the same appends by bare asyncpg, and single reports."""

import asyncio
import json
import multiprocessing
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import psutil

from app import ids
from app.postgres import attached
from app.secrets import Keys
from app.settings import Settings
from benchmarks import processes, rows, streams
from benchmarks.processes import Measured, omoi, redis
from benchmarks.sockets import BenchmarkBroken
from benchmarks.streams import TEXT

SANDBOXES = 8  # at once
BATCH = 100
SECONDS = 8.0
ROUNDS = 3
GOAL_EVENTS, GOAL_RATIO, GOAL_SINGLE = 5_000, 0.25, 800
REPORT = """mutation($i: ReportEventsInput!) { reportEvents(input: $i) {
    acceptedThrough desiredState errors { message } } }"""
LOCK = "SELECT last_seq FROM streams WHERE id = $1 FOR UPDATE"
INSERT = """INSERT INTO events (stream_id, seq, id, producer_seq, hash, type, source, turn, payload, occurred_at)
    VALUES ($1, $2, $3, $2, $4, 'message', 'agent', 1, $5, $6)"""
COUNT = "UPDATE streams SET last_seq = $2, size_bytes = size_bytes + $3 WHERE id = $1"
ACCEPT = "UPDATE sandboxes SET accepted_through = $2, last_event_at = omoi_now() WHERE id = $1"

Run = Callable[..., int]


def main() -> None:
    with ExitStack() as stack:
        url = stack.enter_context(redis())
        server = stack.enter_context(omoi(REDIS_URL=url))
        asyncio.run(_compare(server, url))


async def _compare(server: Measured, redis_url: str) -> None:
    keys = Keys.load(Settings(data=Path(server.data)))
    taken: dict[str, list[float]] = {"bare": [], "batches": [], "bare single": [], "single": []}
    async with streams.writer(server, redis_url) as writer, attached(Path(server.data), holder="bare") as database:
        for _ in range(ROUNDS):
            for bare, name, size in (("bare", "batches", BATCH), ("bare single", "single", 1)):
                taken[bare].append(_rate(_append, database, await writer.sandboxes(SANDBOXES), size))
                tokens = [keys.sandbox_token(sandbox_id, 1) for sandbox_id in await writer.sandboxes(SANDBOXES)]
                before = server.cpu_seconds
                taken[name].append(_rate(_report, server.port, tokens, size))
                busy = (server.cpu_seconds - before) / SECONDS
                print(
                    f"{size:3} at once: reportEvents {taken[name][-1]:6.0f}   bare asyncpg {taken[bare][-1]:6.0f}   "
                    f"events a second, the server's process at {busy:.0%} of a core",
                    flush=True,
                )
    medians = {name: statistics.median(rates) for name, rates in taken.items()}
    print(
        f"{medians['batches']:.0f} events a second, goal {GOAL_EVENTS}; {medians['batches'] / medians['bare']:.2f} of "
        f"bare asyncpg, goal {GOAL_RATIO}; {medians['single']:.0f} single reports, goal {GOAL_SINGLE}, "
        f"{medians['single'] / medians['bare single']:.2f} of bare asyncpg"
    )


def _rate(work: Run, *given: Any) -> float:
    """Events stored per second by this work in a process of its own, after a moment of it to warm up."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(work, given) / SECONDS


def _append(database: str, sandboxes: list[UUID], size: int) -> int:
    """The peer works where the server works."""
    process = psutil.Process()
    if hasattr(process, "cpu_affinity"):
        process.cpu_affinity([0])
    return asyncio.run(_together(lambda until, number: _append_on(database, sandboxes[number], size, until)))


def _report(port: int, tokens: list[str], size: int) -> int:
    processes.step_aside()
    return asyncio.run(_together(lambda until, number: _report_on(port, tokens[number], size, until)))


async def _together(one: Callable[[float, int], Any]) -> int:
    until = time.monotonic() + SECONDS
    return sum(await asyncio.gather(*(one(until, number) for number in range(SANDBOXES))))


async def _append_on(database: str, sandbox_id: UUID, size: int, until: float) -> int:
    connection = await rows.connect(database)
    payload, seq = json.dumps({"text": TEXT}), 0
    while time.monotonic() < until:
        async with connection.transaction():
            seq = await connection.fetchval(LOCK, sandbox_id)
            now = datetime.now(UTC)
            made = [(sandbox_id, seq + n, ids.new(), bytes(32), payload, now) for n in range(1, size + 1)]
            await connection.executemany(INSERT, made)
            seq += size
            await connection.execute(COUNT, sandbox_id, seq, size * len(payload))
            await connection.execute(ACCEPT, sandbox_id, seq)
    await connection.close()
    return seq


async def _report_on(port: int, token: str, size: int, until: float) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    through = 0
    while time.monotonic() < until:
        writer.write(_request(token, through, size))
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        body = await reader.readexactly(int(head.split(b"content-length:", 1)[1].split(b"\r\n", 1)[0]))
        through += size
        if b'"acceptedThrough":%d,' % through not in body:
            raise BenchmarkBroken(body.decode())
    writer.close()
    return through


def _request(token: str, through: int, size: int) -> bytes:
    event = {"type": "MESSAGE", "turn": 1, "occurredAt": datetime.now(UTC).isoformat(), "payload": {"text": TEXT}}
    reported = [{"producerSeq": through + n, **event} for n in range(1, size + 1)]
    content = json.dumps({"query": REPORT, "variables": {"i": {"events": reported}}}).encode()
    head = [
        "POST /graphql HTTP/1.1",
        "host: 127.0.0.1",
        "content-type: application/json",
        "accept: application/json",
        f"authorization: Bearer {token}",
        f"content-length: {len(content)}",
    ]
    return "\r\n".join([*head, "", ""]).encode() + content


if __name__ == "__main__":
    main()
