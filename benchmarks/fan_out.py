"""One sandbox's events to 1,000 equal subscribers, beside a raw broadcast, plain Strawberry and graphql-ws on node."""

import asyncio
import statistics
from collections.abc import Awaitable, Callable
from contextlib import ExitStack

from benchmarks import sockets, streams
from benchmarks.processes import Measured, node_peer, omoi, peer, redis, step_aside
from benchmarks.sockets import Watchers
from benchmarks.streams import WATCH

SUBSCRIBERS = 1_000
WARM_PAYLOADS = 10
ROUNDS = 3
TOGETHER = (1, 10)  # events in one payload
PAYLOADS = {"OmoiOS": 100, "raw Starlette": 100, "plain Strawberry": 15, "graphql-ws on node": 50}
GOALS = {"raw Starlette": 0.75, "plain Strawberry": 6.0, "graphql-ws on node": 2.0}
# A payload holds what one transaction has committed: the next one begins when all subscribers have this one.
ALONE = {"OMOI_STREAM_WINDOW_SECONDS": "0.0001", "OMOI_ACCOUNT_CONNECTIONS": "5000"}

Tell = Callable[[], Awaitable[object]]


def main() -> None:
    step_aside()
    with ExitStack() as stack:
        url = stack.enter_context(redis())
        ours = stack.enter_context(omoi(REDIS_URL=url, **ALONE))
        peers = {
            "raw Starlette": stack.enter_context(peer("raw_broadcast")),
            "plain Strawberry": stack.enter_context(peer("plain_subscriptions")),
            "graphql-ws on node": stack.enter_context(node_peer()),
        }
        for together in TOGETHER:
            asyncio.run(_compare(ours, url, peers, together))


async def _compare(ours: Measured, redis_url: str, peers: dict[str, Measured], together: int) -> None:
    rates: dict[str, list[float]] = {name: [] for name in PAYLOADS}
    for _ in range(ROUNDS):
        rate, seen = await _ours(ours, redis_url, together)
        rates["OmoiOS"].append(rate)
        for name, server in peers.items():
            rates[name].append(await _peer(server, seen, PAYLOADS[name]))
        told = "   ".join(f"{name} {taken[-1]:7.0f}" for name, taken in rates.items())
        print(f"{together:2} in a payload of {len(seen)} bytes: {told}   per CPU-second", flush=True)
    for name, goal in GOALS.items():
        ratios = [mine / theirs for mine, theirs in zip(rates["OmoiOS"], rates[name], strict=True)]
        print(f"{together:2} in a payload: {statistics.median(ratios):5.2f} times {name}, goal {goal}", flush=True)


async def _ours(server: Measured, redis_url: str, together: int) -> tuple[float, bytes]:
    async with streams.writer(server, redis_url) as writer:
        sandboxes = await writer.sandboxes(1)
        variables = streams.watched(sandboxes, subscribers=SUBSCRIBERS)
        async with sockets.watching(server, WATCH, variables) as watchers:
            rate = await delivered(server, watchers, lambda: writer.say(sandboxes[0], together), PAYLOADS["OmoiOS"])
            return rate, watchers.sample()


async def _peer(server: Measured, seen: bytes, payloads: int) -> float:
    async with (
        streams.publisher(server, seen) as publisher,
        sockets.watching(server, WATCH, [{"id": "all"}] * SUBSCRIBERS) as watchers,
    ):
        return await delivered(server, watchers, lambda: publisher.say("all"), payloads)


async def delivered(server: Measured, watchers: Watchers, tell: Tell, payloads: int) -> float:
    """Payloads delivered per second of the server's own processor time, one after the other."""
    for number in range(WARM_PAYLOADS + payloads):
        if number == WARM_PAYLOADS:
            before, frames = server.cpu_seconds, watchers.frames
        wanted = watchers.frames + watchers.size
        await tell()
        await watchers.reach(wanted)
    return (watchers.frames - frames) / (server.cpu_seconds - before)


if __name__ == "__main__":
    main()
