"""200 sandboxes, each followed by five of 1,000 subscribers, beside a raw broadcast of the same bytes."""

import asyncio
import statistics
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from uuid import UUID

from app import ids
from benchmarks import sockets, streams
from benchmarks.fan_out import ALONE, SUBSCRIBERS
from benchmarks.processes import Measured, omoi, peer, redis, step_aside
from benchmarks.sockets import Watchers
from benchmarks.streams import WATCH

SANDBOXES = 200
ROUNDS = 2
TURNS = 4  # in each of which every sandbox has one event

Tell = Callable[[UUID], Awaitable[object]]


def main() -> None:
    step_aside()
    with ExitStack() as stack:
        url = stack.enter_context(redis())
        ours, raw = stack.enter_context(omoi(REDIS_URL=url, **ALONE)), stack.enter_context(peer("raw_broadcast"))
        asyncio.run(_compare(ours, raw, url))


async def _compare(ours: Measured, raw: Measured, redis_url: str) -> None:
    ratios = []
    async with streams.writer(ours, redis_url) as writer:
        for _ in range(ROUNDS):
            sandboxes = await writer.sandboxes(SANDBOXES)
            variables = streams.watched(sandboxes, subscribers=SUBSCRIBERS)
            async with sockets.watching(ours, WATCH, variables) as watchers:
                mine, seen = await _delivered(ours, watchers, sandboxes, writer.say), watchers.sample()
            async with streams.publisher(raw, seen) as publisher, sockets.watching(raw, WATCH, variables) as watchers:
                theirs = await _delivered(
                    raw, watchers, sandboxes, lambda key: publisher.say(ids.encode("sandbox", key))
                )
            ratios.append(mine / theirs)
            print(f"OmoiOS {mine:7.0f}   raw Starlette {theirs:7.0f}   per CPU-second", flush=True)
    print(f"{statistics.median(ratios):.2f} times raw Starlette")


async def _delivered(server: Measured, watchers: Watchers, sandboxes: list[UUID], tell: Tell) -> float:
    """Payloads delivered per second of the server's own processor time, each turn after the one before is there."""
    for turn in range(1 + TURNS):
        if turn == 1:
            before, frames = server.cpu_seconds, watchers.frames
        wanted = watchers.frames + watchers.size
        for sandbox_id in sandboxes:
            await tell(sandbox_id)
        await watchers.reach(wanted)
    return (watchers.frames - frames) / (server.cpu_seconds - before)


if __name__ == "__main__":
    main()
