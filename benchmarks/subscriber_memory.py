"""What one more subscriber takes of the server's memory, beside a raw broadcast. Goal: at most 40 kB."""

import asyncio
from contextlib import ExitStack

from benchmarks import sockets, streams
from benchmarks.fan_out import ALONE, SUBSCRIBERS
from benchmarks.processes import Measured, omoi, peer, redis
from benchmarks.streams import WATCH

GOAL_KB = 40.0
WARM_SUBSCRIBERS = 20


def main() -> None:
    with ExitStack() as stack:
        url = stack.enter_context(redis())
        ours, raw = stack.enter_context(omoi(REDIS_URL=url, **ALONE)), stack.enter_context(peer("raw_broadcast"))
        asyncio.run(_compare(ours, raw, url))


async def _compare(ours: Measured, raw: Measured, redis_url: str) -> None:
    async with streams.writer(ours, redis_url) as writer:
        sandboxes = await writer.sandboxes(1)
        mine = await _kilobytes(ours, streams.watched(sandboxes, subscribers=SUBSCRIBERS))
    theirs = await _kilobytes(raw, [{"id": "all"}] * SUBSCRIBERS)
    print(f"OmoiOS {mine:.1f} kB   raw Starlette {theirs:.1f} kB   a subscriber, goal {GOAL_KB:.0f}")


async def _kilobytes(server: Measured, variables: list[dict[str, str]]) -> float:
    async with sockets.watching(server, WATCH, variables[:WARM_SUBSCRIBERS]):
        before = server.megabytes  # with all that is loaded once
        async with sockets.watching(server, WATCH, variables):
            return (server.megabytes - before) * 1000 / len(variables)


if __name__ == "__main__":
    main()
