"""A million events through one subscription, and through one group of them: the server's memory on the way."""

import asyncio
import json
import time
from contextlib import ExitStack

from websockets.asyncio.client import connect

from benchmarks import rows, sockets, streams
from benchmarks.processes import Measured, omoi, redis
from benchmarks.streams import WATCH

EVENTS = 1_000_000
STEPS = 10
TOGETHER = 500  # in one transaction, where they are told live
SUBSCRIBERS = 10
FEED = """subscription($id: ID!) { projectActivity(projectId: $id) {
    cursor caughtUp activities { id seq cursor verb summary actor occurredAt subject { id } } } }"""


def main() -> None:
    with ExitStack() as stack:
        url = stack.enter_context(redis())
        server = stack.enter_context(omoi(REDIS_URL=url))
        project_id = rows.project(server)
        rows.many(server, rows.ACTIVITIES, project_id, first=2, last=EVENTS)
        print("what was there before, to one subscriber")
        asyncio.run(_follow(server, project_id))
        print(f"live, to a group of {SUBSCRIBERS}")
        asyncio.run(_live(server, url))


class Readings:
    """The server's memory at every tenth of the way."""

    def __init__(self, server: Measured) -> None:
        self._server = server
        self._megabytes: list[float] = []
        self._started = time.perf_counter()

    def note(self, events: int) -> None:
        if events % (EVENTS // STEPS) == 0:
            self._megabytes.append(self._server.megabytes)
            print(f"{events:9,} events   {self._megabytes[-1]:6.1f} MB", flush=True)

    def sum_up(self) -> None:
        seconds = time.perf_counter() - self._started
        growth = (self._megabytes[-1] - self._megabytes[0]) * 1e6 / (EVENTS - EVENTS // STEPS)
        print(f"{growth:+.2f} bytes an event after the first tenth; {EVENTS / seconds:,.0f} events a second")


async def _follow(server: Measured, project_id: str) -> None:
    readings, seq = Readings(server), 0
    async with connect(server.url.replace("http", "ws"), subprotocols=["graphql-transport-ws"], max_size=None) as ws:
        await ws.send(json.dumps({"type": "connection_init", "payload": {"authorization": f"Bearer {server.token}"}}))
        await ws.recv()
        payload = {"query": FEED, "variables": {"id": project_id}}
        await ws.send(json.dumps({"type": "subscribe", "id": "1", "payload": payload}))
        while seq < EVENTS:
            message = json.loads(await ws.recv())
            for activity in message["payload"]["data"]["projectActivity"]["activities"]:
                assert activity["seq"] == seq + 1, "a hole"
                seq += 1
                readings.note(seq)
    readings.sum_up()


async def _live(server: Measured, redis_url: str) -> None:
    async with streams.writer(server, redis_url) as writer:
        sandboxes = await writer.sandboxes(1)
        variables = streams.watched(sandboxes, subscribers=SUBSCRIBERS)
        async with sockets.watching(server, WATCH, variables) as watchers:
            readings = Readings(server)
            for events in range(TOGETHER, EVENTS + 1, TOGETHER):
                await writer.say(sandboxes[0], TOGETHER)
                await watchers.reach(events, sockets.EVENTS)
                readings.note(events)
            readings.sum_up()


if __name__ == "__main__":
    main()
