"""Sandboxes to watch, and events that are committed to them from another process than the server's."""

import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx

from app import auth, clock, ids, streams, transactions
from app.bus import Bus
from app.db import Database
from app.enums import EventSource, SandboxEventType, SandboxStatus
from app.models import Sandbox
from app.postgres import attached
from app.transactions import Happening
from benchmarks import rows
from benchmarks.processes import Measured

WATCH = """subscription($id: ID!) { sandboxEvents(sandboxId: $id) { cursor caughtUp events {
    id seq cursor type source turn occurredAt recordedAt ... on MessageEvent { text } } } }"""
TEXT = "The agent says a few words about what it has found."
LIFE = timedelta(days=1)


@dataclass
class Writer:
    """Commits as the server's replicas do: the same transaction, and the same ring through Redis after it."""

    server: Measured
    db: Database
    bus: Bus

    async def sandboxes(self, count: int) -> list[UUID]:
        """New ones, in one project, that run nowhere."""
        project_id = ids.require(rows.project(self.server), "project")
        made = {ids.new(): project_id for _ in range(count)}
        async with self.db.writing() as session:
            session.add_all(_sandbox(sandbox_id, project_id) for sandbox_id in made)
            await session.flush()
            await streams.create(session, made)
        return list(made)

    async def say(self, sandbox_id: UUID, events: int = 1) -> float:
        """Commit so many events in one transaction; returns the moment at which it was over."""
        said = Happening(type=SandboxEventType.MESSAGE, source=EventSource.AGENT, turn=1, payload={"text": TEXT})
        async with transactions.begin(self.db, self.bus, auth.SYSTEM, request_id="benchmark") as tx:
            tx.append(sandbox_id, [said] * events)
        return time.monotonic()


@asynccontextmanager
async def writer(server: Measured, redis_url: str) -> AsyncIterator[Writer]:
    async with attached(Path(server.data), holder="benchmark") as url:
        db, bus = Database(url, connections=10), Bus(redis_url)
        async with bus.running():
            yield Writer(server, db, bus)
        await db.close()


def watched(sandbox_ids: Sequence[UUID], *, subscribers: int) -> list[dict[str, Any]]:
    """The variables of so many subscriptions, taking turns."""
    names = [ids.encode("sandbox", sandbox_id) for sandbox_id in sandbox_ids]
    return [{"id": names[number % len(names)]} for number in range(subscribers)]


class Publisher:
    """Makes a peer broadcast what was seen of ours: the same message, with the next seq each time."""

    def __init__(self, peer: Measured, seen: bytes, client: httpx.AsyncClient) -> None:
        self._url = f"http://127.0.0.1:{peer.port}/publish"
        self._message = json.loads(seen)
        self._events = self._message["payload"]["data"]["sandboxEvents"]["events"]
        self._client = client
        self._seqs: Counter[str] = Counter()

    async def say(self, topic: str) -> None:
        for event in self._events:
            self._seqs[topic] += 1
            event["seq"] = self._seqs[topic]
        content = json.dumps(self._message, separators=(",", ":"))
        answer = await self._client.post(self._url, content=content, params={"topic": topic})
        answer.raise_for_status()


@asynccontextmanager
async def publisher(peer: Measured, seen: bytes) -> AsyncIterator[Publisher]:
    async with httpx.AsyncClient() as client:
        yield Publisher(peer, seen, client)


def _sandbox(sandbox_id: UUID, project_id: UUID) -> Sandbox:
    return Sandbox(
        id=sandbox_id,
        project_id=project_id,
        attempt=1,
        name=f"bench-{sandbox_id}",
        provider="nowhere",
        status=SandboxStatus.RUNNING,
        resources={},
        lease_until=clock.now() + LIFE,
        deadline_at=clock.now() + LIFE,
    )
