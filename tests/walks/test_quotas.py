"""A worker that has more to tell than it may: it waits as long as it is told, and loses nothing."""

import asyncio

import httpx

from tests.schema import boxes
from tests.servers import shared_world
from tests.world import project
from worker.delivery import Delivery, Inbox
from worker.server import Server
from worker.spool import Spool

QUOTA = {"sandbox_events_per_second": 100, "sandbox_events_burst": 200}
FINISH = {"success": True, "summary": "All told."}
READ = """query($id: ID!, $after: String) { sandbox(id: $id) { status events(first: 100, after: $after) {
  pageInfo { hasNextPage endCursor } nodes { type payload } } } }"""


class Counting(httpx.AsyncHTTPTransport):
    """The way to the server, on which one sees how often it said to wait."""

    put_off = 0

    async def handle_async_request(self, request):
        answer = await super().handle_async_request(request)
        self.put_off += b'"RATE_LIMITED"' in await answer.aread()
        return answer


async def lines(account, box):
    """What it logged, from the first page to the last."""
    found, after, more = [], None, True
    while more:
        answer = await account(READ, id=box.id, after=after)
        events = answer.data["sandbox"]["events"]
        found += [node["payload"]["text"] for node in events["nodes"] if node["type"] == "LOG"]
        after, more = events["pageInfo"]["endCursor"], events["pageInfo"]["hasNextPage"]
    return found


async def test_worker_over_its_quota_loses_nothing(postgres, tmp_path):
    """Each of its events is there once, in order, and then its end; nobody had to be asked without need."""
    async with shared_world(postgres, **QUOTA) as world:
        ada, way, spool = await world.account("ada"), Counting(), Spool(tmp_path / "spool")
        box = await boxes.running(ada, await project(ada))
        for number in range(450):
            spool.append("LOG", {"text": str(number)})
        spool.finish(FINISH)
        async with httpx.AsyncClient(transport=way, timeout=30) as http, asyncio.timeout(60):
            await Delivery(spool, Server(world.url, box.token, http), Inbox()).run()

        assert await lines(ada, box) == [str(number) for number in range(450)]
        assert (await ada("query($id: ID!) { sandbox(id: $id) { status } }", id=box.id)).data == {
            "sandbox": {"status": "COMPLETED"}
        }
    assert 1 <= way.put_off <= 4
