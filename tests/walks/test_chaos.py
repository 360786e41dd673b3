"""Whatever breaks, and however often: each subscriber is told what was acknowledged, once, in order, without holes."""

import contextlib
import os
import secrets
import signal
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from app.postgres import attached
from app.secrets import Keys
from app.settings import Settings
from tests.load import accounts, programs
from tests.servers import Up, Valkey, free_port, postgres_of, until, up, valkey
from tests.traces import sampled

EVENTS = 1_000_000 if os.environ.get("OMOI_LONG") == "2" else 100_000
SANDBOXES, SUBSCRIBERS = 50, 100
PATIENCE_SECONDS = EVENTS / 250
MOST_BYTES = 320 << 20  # of a server's memory, whatever went through it; it has half of that when it is new
FAULTS = [
    *("redis", "owner", "postgres", "redis", "other", "flush", "redis"),
    *("owner", "postgres", "other", "redis", "redis", "owner"),
]


@dataclass
class Plane:
    """Two servers on one Postgres, which belongs to the first of them, and one Redis; each can be broken."""

    data: Path
    redis: Valkey
    key: str = field(default_factory=lambda: secrets.token_hex(32))
    running: dict[str, tuple[Up, contextlib.AsyncExitStack]] = field(default_factory=dict)

    def __post_init__(self):
        self.ports = {"owner": free_port(), "other": free_port()}
        self.given = {
            "REDIS_URL": self.redis.url,
            "OMOI_ROOT_KEY": self.key,
            "OMOI_LOCAL_SANDBOXES": SANDBOXES,
            "OMOI_STREAM_POLL_SECONDS": 1,
        }

    async def start(self, name: str) -> Up:
        stack = contextlib.AsyncExitStack()
        given = self.given | {"PORT": self.ports[name]}
        folder = self.data
        if name == "other":
            folder = self.data.with_name("other")
            given["DATABASE_URL"] = await stack.enter_async_context(attached(self.data, holder="a test"))
        server = await stack.enter_async_context(up(folder, **given))
        self.running[name] = server, stack
        return server

    async def stop(self) -> None:
        for name in ("other", "owner"):
            if name in self.running:
                await self.running.pop(name)[1].aclose()

    def heaviest_bytes(self) -> int:
        """The memory of the larger server among those that run now."""
        sizes = [0]
        for server, _ in list(self.running.values()):
            with contextlib.suppress(psutil.NoSuchProcess):
                sizes.append(psutil.Process(server.process.pid).memory_info().rss)
        return max(sizes)

    async def crash(self, fault: str) -> None:
        """Break one part, and start it again where nobody else does that."""
        match fault:
            case "redis":
                await self.redis.kill()
                await self.redis.start()
            case "flush":
                await self.redis.client.flushall()
            case "postgres":
                os.kill(main_process(self.data), signal.SIGQUIT)  # an immediate stop; the server brings it back
            case name:
                server, stack = self.running.pop(name)
                server.process.kill()
                await server.ended()
                if name == "owner":
                    await until(lambda: not postgres_of(self.data))
                await stack.aclose()
                await self.start(name)


def main_process(data):
    return int((data / "postgres/postmaster.pid").read_text().split()[0])


@pytest.fixture
async def plane(data):
    async with valkey() as redis:
        plane = Plane(data, redis)
        try:
            await plane.start("owner")
            await plane.start("other")
            yield plane
        finally:
            await plane.stop()


async def test_nothing_is_lost_in_chaos(plane):
    """Rows, digest, ledger and a hundred subscribers agree after each part has crashed again and again."""
    owner = plane.running["owner"][0]
    await owner.sign_in()
    keys = Keys.load(Settings(data=plane.data, root_key=plane.key))
    scene = await accounts.scene(owner, keys, SANDBOXES)
    ports, logs, ledger = list(plane.ports.values()), EVENTS // SANDBOXES, plane.data.with_name("ledger")
    order = {"ports": ports, "events": logs, "ledger": str(ledger), "twice": 0.1, "early": 0.1}
    watched = scene.sandboxes * (SUBSCRIBERS // SANDBOXES)
    async with (
        programs.subscribers(ports=ports, token=scene.reader, sandboxes=watched, logs=logs, stay_seconds=3) as crowd,
        programs.reporters(tokens=scene.workers, **order) as reporting,
        sampled(plane.heaviest_bytes) as sizes,
    ):
        for number, fault in enumerate(FAULTS, 1):
            await reporting.reach(number * EVENTS // (len(FAULTS) + 1), PATIENCE_SECONDS)
            await plane.crash(fault)
        await reporting.ended(PATIENCE_SECONDS)
        await crowd.told(logs)
        said = await crowd.accounts()
    assert max(sizes) < MOST_BYTES
    through = accounts.acknowledged(ledger)
    assert through == dict.fromkeys(scene.sandboxes, logs)
    accounts.assert_everything_was_told(said, through)
    async with attached(plane.data, holder="a test") as url:
        await accounts.assert_everything_is_stored(url, said, through)
    # Nor was it too easy.
    assert min(reporting.met["twice"], reporting.met["early"], reporting.met["holes"]) > EVENTS / 4_000
    assert sum(one["attempts"] for one in said) > 5 * SUBSCRIBERS


async def test_who_is_sent_away_goes_on_elsewhere(plane):
    """A server that is told to end sends its subscribers away with 1012; at the next one they miss nothing."""
    owner, (other, _) = plane.running["owner"][0], plane.running["other"]
    await owner.sign_in()
    scene = await accounts.scene(owner, Keys.load(Settings(data=plane.data, root_key=plane.key)), 2)
    ports, logs, ledger = list(plane.ports.values()), 2_000, plane.data.with_name("ledger")
    order = {"ports": ports[:1], "events": logs, "ledger": str(ledger), "batch": 10, "pause_seconds": 0.02}
    watched = scene.sandboxes * 150
    async with programs.subscribers(ports=ports, token=scene.reader, sandboxes=watched, logs=logs) as crowd:
        await crowd.ready()
        async with programs.reporters(tokens=scene.workers, **order) as reporting:
            await reporting.reach(logs // 4)
            assert await other.terminate() == 0
            await reporting.ended()
        await crowd.told(logs)
        said = await crowd.accounts()
    accounts.assert_everything_was_told(said, accounts.acknowledged(ledger))
    sent_away = [one for one in said if "1012" in one["ends"]]
    assert len(watched) / 4 < len(sent_away) < len(watched) * 3 / 4
    assert "Traceback" not in other.log.read_text()
