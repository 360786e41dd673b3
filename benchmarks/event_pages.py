"""A page of 100 events of a sandbox that has 5,000,000 of them, beside one that has 10,000. Goal: within 1.3 times."""

import asyncio
import statistics
import time
from contextlib import ExitStack
from pathlib import Path

import asyncpg

from app import ids
from app.postgres import attached
from app.streams import Cursor
from benchmarks import rows, streams
from benchmarks.processes import Measured, omoi, redis

FEW, MANY = 10_000, 5_000_000
SIZE = 100
ROUNDS = 200
GOAL = 1.3
AT_ONCE = 100_000
PAGE = """query($id: ID!, $after: String) { sandbox(id: $id) { events(first: 100, after: $after) {
    pageInfo { endCursor hasNextPage } nodes { id seq cursor type source turn occurredAt } } } }"""
EVENTS = """
    INSERT INTO events (stream_id, seq, id, producer_seq, type, source, turn, payload, occurred_at)
    SELECT $1, n, gen_random_uuid(), n, 'message', 'agent', n / 50, '{"text": "The agent says a few words."}',
           omoi_now()
    FROM generate_series($2::bigint, $3::bigint) AS n
"""


def main() -> None:
    with ExitStack() as stack:
        url = stack.enter_context(redis())
        few, many = (stack.enter_context(omoi(REDIS_URL=url)) for _ in range(2))
        asyncio.run(_compare({FEW: few, MANY: many}, url))


async def _compare(servers: dict[int, Measured], redis_url: str) -> None:
    pages: dict[str, tuple[Measured, str, str | None]] = {}
    for count, server in servers.items():
        name, epoch = await _filled(server, redis_url, count)
        pages[f"first of {count:,}"] = (server, name, None)
        pages[f"deep in {count:,}"] = (server, name, str(Cursor(epoch, count * 9 // 10)))
    medians = _alternate(pages)
    for name, milliseconds in medians.items():
        print(f"{name:>20}: {milliseconds:5.2f} ms")
    for place in ("first of", "deep in"):
        print(f"{place} {medians[f'{place} {MANY:,}'] / medians[f'{place} {FEW:,}']:.2f} times, goal {GOAL}")


async def _filled(server: Measured, redis_url: str, count: int) -> tuple[str, str]:
    """A sandbox with so many events: its name, and its stream's epoch."""
    async with streams.writer(server, redis_url) as writer:
        [sandbox_id] = await writer.sandboxes(1)
    async with attached(Path(server.data), holder="benchmark") as url:
        connection: asyncpg.Connection = await rows.connect(url)
        for start in range(1, count + 1, AT_ONCE):
            await connection.execute(EVENTS, sandbox_id, start, min(start + AT_ONCE - 1, count))
        await connection.execute("UPDATE streams SET last_seq = $2 WHERE id = $1", sandbox_id, count)
        await connection.execute("VACUUM ANALYZE")
        epoch: str = await connection.fetchval("SELECT epoch FROM streams WHERE id = $1", sandbox_id)
        await connection.close()
    return ids.encode("sandbox", sandbox_id), epoch


def _alternate(pages: dict[str, tuple[Measured, str, str | None]]) -> dict[str, float]:
    """Medians, each page asked in turn, so that a noisy moment strikes them alike."""
    times: dict[str, list[float]] = {name: [] for name in pages}
    for _ in range(ROUNDS):
        for name, (server, sandbox, after) in pages.items():
            started = time.perf_counter()
            answer = rows.ask(server, PAGE, id=sandbox, after=after)
            times[name].append((time.perf_counter() - started) * 1000)
            assert len(answer["sandbox"]["events"]["nodes"]) == SIZE
    return {name: statistics.median(taken) for name, taken in times.items()}


if __name__ == "__main__":
    main()
