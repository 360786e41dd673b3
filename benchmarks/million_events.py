"""A million events through one subscription: the server's memory at every tenth of the way. Goal: flat."""

import asyncio
import json
import time

from websockets.asyncio.client import connect

from benchmarks import rows
from benchmarks.processes import Measured, omoi

EVENTS = 1_000_000
STEPS = 10
FEED = """subscription($id: ID!) { projectActivity(projectId: $id) {
    cursor caughtUp activities { id seq cursor verb summary actor occurredAt subject { id } } } }"""


def main() -> None:
    with omoi() as server:
        project_id = rows.project(server)
        rows.many(server, rows.ACTIVITIES, project_id, first=2, last=EVENTS)
        asyncio.run(_follow(server, project_id))


async def _follow(server: Measured, project_id: str) -> None:
    readings, started = [], time.perf_counter()
    async with connect(server.url.replace("http", "ws"), subprotocols=["graphql-transport-ws"], max_size=None) as ws:
        await ws.send(json.dumps({"type": "connection_init", "payload": {"authorization": f"Bearer {server.token}"}}))
        await ws.recv()
        payload = {"query": FEED, "variables": {"id": project_id}}
        await ws.send(json.dumps({"type": "subscribe", "id": "1", "payload": payload}))
        seq = 0
        while seq < EVENTS:
            message = json.loads(await ws.recv())
            for activity in message["payload"]["data"]["projectActivity"]["activities"]:
                assert activity["seq"] == seq + 1, "a hole"
                seq += 1
                if seq % (EVENTS // STEPS) == 0:
                    readings.append(server.megabytes)
                    print(f"{seq:9,} events   {readings[-1]:6.1f} MB", flush=True)
    seconds = time.perf_counter() - started
    growth = (readings[-1] - readings[0]) * 1e6 / (EVENTS - EVENTS // STEPS)
    print(f"{growth:+.2f} bytes an event after the first tenth; {EVENTS / seconds:,.0f} events a second")


if __name__ == "__main__":
    main()
