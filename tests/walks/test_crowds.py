"""Many subscribers, and those who disturb: slow readers, lines that drop, sockets that are cut off in the middle."""

import asyncio
import contextlib
import os
from urllib.parse import urlsplit

import psutil
import pytest
import structlog

from app.bus import CHANNEL
from app.secrets import Keys
from app.settings import Settings
from tests.line import laid
from tests.load import accounts, programs
from tests.schema import boxes
from tests.servers import until, up, valkey
from tests.traces import sampled
from tests.world import World, project

LONG = bool(os.environ.get("OMOI_LONG"))
SUBSCRIBERS = 100
SLOW_SECONDS = 30 if LONG else 10
GROWTH_BYTES = 64 << 20  # of a server on which half of a hundred subscribers do not read
DROPS, DROP_SECONDS = (10, 2.0) if LONG else (4, 2.0)
CLOSES = 10_000


@pytest.fixture
async def scene(data):
    """A server as its users have it, with one sandbox."""
    async with up(data, OMOI_LOCAL_SANDBOXES=1) as server:
        await server.sign_in()
        server.scene = await accounts.scene(server, Keys.load(Settings(data=data)), 1)
        server.port = urlsplit(server.address).port
        yield server


@contextlib.asynccontextmanager
async def crowd(server, *, size, **order):
    """Subscribers that have reached the live end of the one sandbox."""
    watched = server.scene.sandboxes * size
    async with programs.subscribers(token=server.scene.reader, sandboxes=watched, **order) as one:
        await one.ready()
        yield one


async def test_slow_readers_disturb_nobody(scene, tmp_path):
    """They cost little memory, end with a cursor, and miss nothing; who reads is told everything while they sleep."""
    logs, batch = 2_400, 20
    order = {"events": logs, "batch": batch, "filler": 4_000, "pause_seconds": SLOW_SECONDS * batch / logs}
    process = psutil.Process(scene.process.pid)
    reporting = programs.reporters(
        ports=[scene.port], tokens=scene.scene.workers, ledger=str(tmp_path / "ledger"), **order
    )
    slow = SUBSCRIBERS // 2
    async with crowd(scene, size=SUBSCRIBERS, ports=[scene.port], logs=logs, slow=slow) as subscribers:
        before = process.memory_info().rss
        async with sampled(lambda: process.memory_info().rss) as sizes, reporting as workers:
            await workers.ended(6 * SLOW_SECONDS)
            await subscribers.told(logs, who="quick")
        asleep = [one for one in await subscribers.accounts() if one["slow"]]
        assert max(one["logs"] for one in asleep) < logs / 2
        await subscribers.hurry()
        await subscribers.told(logs)
        said = await subscribers.accounts()
    accounts.assert_everything_was_told(said, accounts.acknowledged(tmp_path / "ledger"))
    assert max(sizes) - before < GROWTH_BYTES
    ends = [one["ends"] for one in said]
    assert all(set(end) == {"SLOW_CONSUMER"} for end in ends[:slow])
    assert not any(ends[slow:])


async def test_lines_that_drop_lose_nothing(scene, tmp_path):
    """Two seconds of silence and then a broken line, again and again, while the sandbox goes on: all is delivered."""
    order = {"events": 250 * DROPS, "batch": 5, "pause_seconds": 0.05}
    ledger = tmp_path / "ledger"
    async with laid() as line:
        line.target = scene.port
        ports, logs = [urlsplit(line.address).port], order["events"]
        async with crowd(scene, size=20, ports=ports, logs=logs) as subscribers:
            workers = {"ports": [scene.port], "tokens": scene.scene.workers, "ledger": str(ledger)}
            async with programs.reporters(**workers, **order) as reporting:
                for drop in range(DROPS):
                    await reporting.reach(drop * logs // DROPS)
                    line.cut()
                    await asyncio.sleep(DROP_SECONDS)  # its length is what is tested
                    line.mend()
                await reporting.ended()
            await subscribers.told(logs)
            said = await subscribers.accounts()
    assert min(one["attempts"] for one in said) > DROPS / 2
    accounts.assert_everything_was_told(said, accounts.acknowledged(ledger))


async def test_sockets_that_break_leave_nothing(database_url, tmp_path):
    """Ten thousand, in the middle of everything: no task, no connection to Postgres or Redis, no line in the log."""
    async with valkey() as redis:
        settings = Settings(data=tmp_path, orchestrator_enabled=False, redis_url=redis.url)
        with structlog.testing.capture_logs() as logs:
            async with World(settings, database_url).running() as world:
                ada = await world.account("ada")
                own, others = [await boxes.running(ada, await project(ada)) for _ in range(2)]
                await until(lambda: world.server.bus.backend.connected)
                before = await left(world, redis)
                order = {"token": ada.token, "sandboxes": [own.id, others.id] * 50, "logs": 1 << 30}
                order |= {
                    "ports": [urlsplit(world.url).port],
                    "frames": 6,
                    "stay_seconds": 0.3,
                    "attempts": CLOSES // 100,
                }
                async with programs.subscribers(**order) as subscribers:
                    while not await subscribers.ask("satisfied"):
                        await own.did("LOG", {"text": f"{own.id} {own.reported + 1} "})
                        await asyncio.sleep(0.05)  # the pace of an agent
                    said = await subscribers.accounts()
                await until(lambda: gone(world, redis, before))
        assert sum(one["attempts"] for one in said) == CLOSES
        assert [one["wrong"] for one in said if one["wrong"]] == []
        assert max(one["logs"] for one in said) > 10
        assert {entry["event"] for entry in logs} <= {"redis_connected"}


async def left(world, redis):
    """What a connection could leave behind."""
    server = world.server
    hub = server.endpoint._answers._hub
    return {
        "connections": server.endpoint.connections,
        "seats": (server.endpoint._access.room.taken, len(server.endpoint._access.room._accounts)),
        "groups": hub.groups,
        "feeds": server.feeds.count,
        "listeners": server.bus.listeners,
        "rights": len(server.rights._ears),
        "watched": len(server.gate._tokens.ids),
        "pool": server.db.connections_used,
        "redis": [len(await redis.client.client_list()), await redis.client.pubsub_numsub(CHANNEL)],
    }


async def gone(world, redis, before):
    now = await left(world, redis)
    feeding = [task for task in asyncio.all_tasks() if task.get_name() in ("feed", "group")]
    return now == before and not feeding and not world.process.server_state.tasks
