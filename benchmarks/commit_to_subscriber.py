"""From an event's commit to its arrival at 100 subscribers, 500 events a second, beside a raw broadcast."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack

from benchmarks import sockets, streams
from benchmarks.processes import Measured, omoi, peer, redis, step_aside
from benchmarks.sockets import Watchers
from benchmarks.streams import WATCH

SUBSCRIBERS = 100
TOGETHER = 5  # events in one transaction
PER_SECOND = 100  # transactions
SECONDS = 10
ROUNDS = 3
GOALS_MS = (20.0, 150.0)

Tell = Callable[[], Awaitable[object]]


def main() -> None:
    step_aside()
    with ExitStack() as stack:
        url = stack.enter_context(redis())
        ours, raw = stack.enter_context(omoi(REDIS_URL=url)), stack.enter_context(peer("raw_broadcast"))
        asyncio.run(_compare(ours, raw, url))


async def _compare(ours: Measured, raw: Measured, redis_url: str) -> None:
    for _ in range(ROUNDS):
        mine, seen = await _ours(ours, redis_url)
        print(f"OmoiOS {_told(mine)}   raw Starlette {_told(await _raw(raw, seen))}", flush=True)
    print(f"goals: {GOALS_MS[0]:.0f} ms and {GOALS_MS[1]:.0f} ms")


async def _ours(server: Measured, redis_url: str) -> tuple[list[float], bytes]:
    async with streams.writer(server, redis_url) as writer:
        sandboxes = await writer.sandboxes(1)
        variables = streams.watched(sandboxes, subscribers=SUBSCRIBERS)
        async with sockets.watching(server, WATCH, variables, read=SUBSCRIBERS) as watchers:
            await writer.say(sandboxes[0], TOGETHER)
            await watchers.reach(SUBSCRIBERS)
            seen = watchers.sample()
            return await _delays_ms(watchers, lambda: writer.say(sandboxes[0], TOGETHER), after=TOGETHER), seen


async def _raw(server: Measured, seen: bytes) -> list[float]:
    variables = [{"id": "all"}] * SUBSCRIBERS
    async with (
        streams.publisher(server, seen) as publisher,
        sockets.watching(server, WATCH, variables, read=SUBSCRIBERS) as watchers,
    ):
        return await _delays_ms(watchers, lambda: publisher.say("all"))


async def _delays_ms(watchers: Watchers, tell: Tell, *, after: int = 0) -> list[float]:
    """Of each event at each subscriber, from the moment at which its transaction was over, or was sent to the peer.

    The pace is kept by the clock: what is late does not make room for itself.
    """
    committed: dict[int, float] = {}
    started, seq = time.monotonic(), after
    for number in range(PER_SECOND * SECONDS):
        await asyncio.sleep(started + number / PER_SECOND - time.monotonic())
        sent = time.monotonic()
        moment = await tell() or sent
        for _ in range(TOGETHER):
            seq += 1
            committed[seq] = moment
    await watchers.reach(len(committed) * SUBSCRIBERS + after * SUBSCRIBERS, sockets.EVENTS)
    return sorted((came - committed[seq]) * 1000 for seq, came in watchers.arrivals() if seq in committed)


def _told(delays: list[float]) -> str:
    return f"p50 {delays[len(delays) // 2]:5.1f} ms, p99 {delays[len(delays) * 99 // 100]:5.1f} ms"


if __name__ == "__main__":
    main()
