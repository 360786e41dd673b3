"""The doorbell: a ring says that a topic has something up to a seq. Who hears none reads again anyway, a bit later."""

import asyncio
import contextlib
import random
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from typing import Any

import structlog
from broadcaster import Broadcast, BroadcastBackend, Event
from redis.asyncio import Redis
from redis.asyncio.client import PubSub
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from app.errors import CannotStart

CHANNEL = "omoi:rings"
EVERYTHING = "*"  # said after a gap: any topic may have been rung meanwhile
PUBLISH_SECONDS = 1.0
RECONNECT_SECONDS = 0.2
RECONNECT_LIMIT_SECONDS = 5.0
CANCEL_SECONDS = 0.1
PROBE_SECONDS = 5.0  # a connection on which nothing comes for so long is asked whether it lives
WAITING_RINGS = 10_000
RINGS_AT_ONCE = 500  # in one message
SEQ = re.compile("[0-9]{1,19}")

log = structlog.get_logger()


class Bell:
    """What one listener of one topic hears: the newest seq, that something came, and that something may have."""

    def __init__(self) -> None:
        self.newest = 0
        self.missed = False  # rings may have been, until whoever listens has looked
        self._rung = asyncio.Event()

    def ring(self, seq: int) -> None:
        self.newest = max(self.newest, seq)
        self._rung.set()

    def miss(self) -> None:
        self.missed = True
        self._rung.set()

    async def wait(self, seconds: float | None) -> bool:
        """True as soon as it rang since the last call, False when it stayed silent that long."""
        try:
            async with asyncio.timeout(seconds):
                await self._rung.wait()
        except TimeoutError:
            return False
        self._rung.clear()
        return True


class Bus:
    """Rings for this process at once and, with Redis, for the other replicas a moment later."""

    def __init__(self, redis_url: str | None = None) -> None:
        self.backend = RedisBackend(redis_url) if redis_url else None
        self._broadcast = Broadcast(backend=self.backend) if self.backend else Broadcast("memory://")
        self._bells: defaultdict[str, set[Bell]] = defaultdict(set)
        self._waiting: dict[str, int] = {}  # topic -> newest seq not yet published: a burst is one message
        self._wake = asyncio.Event()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with self._broadcast, asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._publish()), group.create_task(self._listen())]
            try:
                yield
            finally:
                for task in tasks:
                    await _end(task)

    def ring(self, topic: str, seq: int) -> None:
        """Never waits and never fails: what is lost here costs its hearers one poll."""
        for bell in self._bells.get(topic, ()):
            bell.ring(seq)
        if self.backend and len(self._waiting) < WAITING_RINGS:
            self._waiting[topic] = max(seq, self._waiting.get(topic, 0))
            self._wake.set()

    @contextlib.contextmanager
    def listen(self, topic: str) -> Iterator[Bell]:
        bell = Bell()
        self._bells[topic].add(bell)
        try:
            yield bell
        finally:
            self._bells[topic].discard(bell)
            if not self._bells[topic]:
                del self._bells[topic]

    @property
    def listeners(self) -> int:
        return sum(map(len, self._bells.values()))

    async def _publish(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            rings, self._waiting = [f"{topic} {seq}" for topic, seq in self._waiting.items()], {}
            for start in range(0, len(rings), RINGS_AT_ONCE):
                with contextlib.suppress(Exception):  # also of answers that are no Redis's: who hears none reads again
                    async with asyncio.timeout(PUBLISH_SECONDS):
                        await self._broadcast.publish(CHANNEL, "\n".join(rings[start : start + RINGS_AT_ONCE]))

    async def _listen(self) -> None:
        async with self._broadcast.subscribe(CHANNEL) as subscriber:
            while True:
                for ring in (await subscriber.get()).message.split("\n"):
                    self._hear(ring)

    def _hear(self, ring: str) -> None:
        topic, _, seq = ring.rpartition(" ")
        if ring == EVERYTHING:
            for bells in self._bells.values():
                for bell in bells:
                    bell.miss()
        elif SEQ.fullmatch(seq):
            for bell in self._bells.get(topic, ()):
                bell.ring(int(seq))


class RedisBackend(BroadcastBackend):
    """Redis pub/sub that comes back by itself. Broadcaster's own one stops for ever at the first lost connection."""

    def __init__(self, url: str) -> None:
        self.connected = False
        try:
            self._redis = Redis.from_url(url, socket_connect_timeout=PUBLISH_SECONDS, retry=Retry(NoBackoff(), 0))
        except ValueError as error:
            raise CannotStart("REDIS_URL is no address of a Redis, e.g. redis://:password@host:6379/0.") from error
        self._channels: set[str] = set()
        self._heard: asyncio.Queue[Event] = asyncio.Queue(WAITING_RINGS)
        self._reader: asyncio.Task[None] | None = None

    async def connect(self) -> None:
        self._reader = asyncio.create_task(self._read())

    async def disconnect(self) -> None:
        if self._reader:
            await _end(self._reader)
        await self._redis.aclose()

    async def subscribe(self, channel: str) -> None:
        self._channels.add(channel)

    async def unsubscribe(self, channel: str) -> None:
        self._channels.discard(channel)

    async def publish(self, channel: str, message: str) -> None:
        await self._redis.publish(channel, message)

    async def next_published(self) -> Event:
        return await self._heard.get()

    async def ping(self) -> bool:
        """True when Redis answers within a second and this process hears what is published."""
        try:
            async with asyncio.timeout(PUBLISH_SECONDS):
                await self._redis.ping()
        except Exception:  # noqa: BLE001 - whatever it answers, it is not well
            return False
        return self.connected

    async def _read(self) -> None:
        pause, told = RECONNECT_SECONDS, False
        while True:
            try:
                await self._read_one_connection()
            except Exception as error:  # noqa: BLE001 - told below, once for each kind of trouble
                # The edge of the reader: whatever it was that came, the next connection begins anew.
                if self.connected:
                    self.connected, pause, told = False, RECONNECT_SECONDS, False
                if not told:
                    log.warning("redis_lost", error=type(error).__name__)
                    told = True
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311 - spreads replicas, guards nothing
            pause = min(pause * 2, RECONNECT_LIMIT_SECONDS)

    async def _read_one_connection(self) -> None:
        async with self._redis.pubsub() as pubsub:
            await pubsub.subscribe(CHANNEL)
            while True:
                message = await _next_message(pubsub)
                if message["type"] == "subscribe":
                    self.connected = True
                    log.info("redis_connected")
                    self._hear(EVERYTHING)
                elif message["type"] == "message":
                    self._hear(message["data"].decode("utf-8", "replace"))

    def _hear(self, message: str) -> None:
        if self._heard.full():
            self._heard.get_nowait()
        self._heard.put_nowait(Event(CHANNEL, message))


async def _next_message(pubsub: PubSub) -> dict[str, Any]:
    """The next message, or TimeoutError from a connection that is silent even when it is asked."""
    asked = False
    while True:
        message: dict[str, Any] | None = await pubsub.get_message(timeout=PROBE_SECONDS)
        if message is not None:
            return message
        if asked:
            raise TimeoutError
        await pubsub.ping()
        asked = True


async def _end(task: asyncio.Task[None]) -> None:
    """Cancel until it has ended: redis-py loses a cancellation that meets a timeout of its own, and would read on."""
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=CANCEL_SECONDS)
