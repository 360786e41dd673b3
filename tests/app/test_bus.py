"""The bus: a ring is heard here at once and elsewhere soon, and without Redis nothing waits and nothing fails."""

import asyncio
import contextlib
import time

import pytest
import structlog

from app.bus import CHANNEL, WAITING_RINGS, Bus
from app.errors import CannotStart
from tests.servers import until, valkey

HEARD_SECONDS = 10


@pytest.fixture(scope="module")
async def redis():
    async with valkey() as server:
        yield server


@contextlib.asynccontextmanager
async def connected(url):
    bus = Bus(url)
    async with bus.running():
        await until(lambda: bus.backend.connected)
        yield bus


async def test_rings_in_one_process():
    """Without Redis a listener hears its own topic, each burst once, and nothing else."""
    bus = Bus()
    async with bus.running():
        with bus.listen("a") as a, bus.listen("b") as b:
            bus.ring("a", 1)
            bus.ring("a", 3)
            bus.ring("a", 2)
            assert await a.wait(HEARD_SECONDS)
            assert a.newest == 3
            assert not await a.wait(0.01)
            assert not await b.wait(0.01)


async def test_leaving_leaves_nothing():
    """Who stops listening is forgotten."""
    bus = Bus()
    with bus.listen("a"), bus.listen("a"):
        assert bus.listeners == 2
    bus.ring("a", 1)
    assert bus.listeners == 0
    assert not bus._bells


async def test_first_subscriber_is_heard(redis):
    """The very first ring to the very first listener of a process arrives, and so does every later one."""
    async with connected(redis.url) as here, connected(redis.url) as there:
        with there.listen("a") as bell:
            await bell.wait(0.2)  # the ring that stands for the time before
            for seq in range(1, 6):
                here.ring("a", seq)
                assert await bell.wait(HEARD_SECONDS)
                assert bell.newest == seq


async def test_four_first_subscribers_are_all_heard(redis):
    """Listeners that come at once do not push each other out, nor when they leave."""
    async with connected(redis.url) as here, connected(redis.url) as there:
        with contextlib.ExitStack() as stack:
            bells = [stack.enter_context(there.listen("a")) for _ in range(4)]
            here.ring("a", 7)
            for bell in bells:
                await until(lambda bell=bell: bell.newest == 7)


@pytest.mark.parametrize(
    "noise",
    [
        b"",
        b"*",
        b" ",
        b"a",
        b"a ",
        b" 5",
        b"a -1",
        b"a 1e3",
        b"a " + b"9" * 5000,
        "a ٣".encode(),
        b"\xff\xfe\x00",
        b"x" * 1_000_000,
        b'{"a": 1}',
    ],
)
async def test_noise_harms_nothing(redis, noise):
    """Whatever else is published on the channel, the next ring is heard."""
    async with connected(redis.url) as bus:
        with bus.listen("a") as bell:
            await redis.client.publish(CHANNEL, noise)
            await redis.client.publish(CHANNEL, "a 42")
            await until(lambda: bell.newest == 42)


async def test_redis_comes_back():
    """After a restart of Redis every listener is woken, for what it may have missed, and rings are heard again."""
    async with valkey() as redis, connected(redis.url) as here, connected(redis.url) as there:
        with there.listen("a") as a, there.listen("b") as b:
            await a.wait(0.2), await b.wait(0.2)
            await redis.kill()
            await until(lambda: not there.backend.connected)
            assert not await a.wait(0.01)
            await redis.start()
            assert await a.wait(HEARD_SECONDS)
            assert await b.wait(HEARD_SECONDS)
            assert not await a.wait(0.01), "woken twice"
            await until(lambda: here.backend.connected)
            here.ring("a", 9)
            await until(lambda: a.newest == 9)


async def test_silent_connection_is_given_up(redis, monkeypatch):
    """A connection on which nothing comes, not even an answer, is replaced; it may be dead without a word."""
    monkeypatch.setattr("app.bus.PROBE_SECONDS", 0.1)
    with structlog.testing.capture_logs() as logs:
        async with connected(redis.url) as bus:
            redis.freeze()
            try:
                await until(lambda: not bus.backend.connected)
            finally:
                redis.thaw()
            await until(lambda: bus.backend.connected)
            with bus.listen("a") as bell:
                await redis.client.publish(CHANNEL, "a 5")
                await until(lambda: bell.newest == 5)
    assert [entry["event"] for entry in logs] == ["redis_connected", "redis_lost", "redis_connected"]


async def test_silence_is_no_loss(redis, monkeypatch):
    """A quiet Redis that answers when asked keeps its connection."""
    monkeypatch.setattr("app.bus.PROBE_SECONDS", 0.02)
    with structlog.testing.capture_logs() as logs:
        async with connected(redis.url) as bus:
            with bus.listen("a") as bell:
                await bell.wait(0.5)
                await bell.wait(0.5)
    assert [entry["event"] for entry in logs] == ["redis_connected"]


@pytest.mark.parametrize("state", ["absent", "frozen"])
async def test_ringing_never_waits(redis, state):
    """Without an answer from Redis ringing costs nothing, is heard in this process, and what waits has a bound."""
    bus = Bus(redis.url if state == "frozen" else "redis://127.0.0.1:1/0")
    async with bus.running():
        redis.freeze()
        try:
            with bus.listen("topic 0") as bell:
                began = time.perf_counter()
                for number in range(2 * WAITING_RINGS):
                    bus.ring(f"topic {number}", 1)
                assert time.perf_counter() - began < 1
                assert await bell.wait(HEARD_SECONDS)
                assert len(bus._waiting) <= WAITING_RINGS
        finally:
            redis.thaw()


@pytest.mark.parametrize("said", [b"$abc\r\n", b"*x\r\n", b":" + b"9" * 5_000 + b"\r\n", b"HTTP/1.1 400\r\n\r\n"])
async def test_what_is_no_redis_ends_nothing(said):
    """Whatever is answered to whatever is said: rings are heard in this process, and it is asked again."""
    asked = 0

    async def answer(reader, writer):
        nonlocal asked
        asked += 1
        with contextlib.closing(writer), contextlib.suppress(ConnectionError):
            while await reader.read(1 << 16):
                writer.write(said)

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        bus = Bus(f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0")
        async with bus.running():
            with bus.listen("a") as bell:
                for number in range(1, 4):
                    bus.ring("a", number)
                    assert await bell.wait(HEARD_SECONDS)
                    known = asked
                    await until(lambda known=known: asked > known)
            assert not await bus.backend.ping()
            known = asked
            await until(lambda: asked > known)


async def test_absence_is_said_once():
    """Who set a wrong REDIS_URL reads so in the log, once and not at every attempt."""
    bus = Bus("redis://127.0.0.1:1/0")
    with structlog.testing.capture_logs() as logs:
        async with bus.running():
            await until(lambda: logs)
            with bus.listen("a") as bell:
                await bell.wait(1)
    assert [entry["event"] for entry in logs] == ["redis_lost"]


def test_wrong_address_is_refused():
    """What is no address of a Redis is named, without its password."""
    with pytest.raises(CannotStart, match="REDIS_URL") as refused:
        Bus("http://:secret@localhost")
    assert "secret" not in str(refused.value)
