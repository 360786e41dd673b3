"""One change of the world: who makes it, what it touches, and what it leaves in the feed and in the audit log."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import insert, select
from sqlalchemy.ext.asyncio import AsyncSession

from app import clock, ids, streams
from app.auth import Principal
from app.bus import Bus
from app.db import Database
from app.enums import EventSource, SandboxEventType
from app.models import Activity, AuditEntry, Event

WORK = "work"  # rung after every change of a project: a task may be due


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    verb: str  # "ticket.created": the object's kind, and what happened to it
    object_id: UUID
    summary: str
    project_id: UUID | None  # None: nobody's feed, only the audit log

    @property
    def object_kind(self) -> str:
        return self.verb.partition(".")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    """An event of a sandbox, before it has its number."""

    type: SandboxEventType
    source: EventSource
    payload: Mapping[str, Any]
    turn: int | None = None
    occurred_at: datetime | None = None  # None: now
    producer_seq: int | None = None
    hash: bytes | None = None


@dataclass(slots=True, kw_only=True)
class Transaction:
    session: AsyncSession
    principal: Principal
    request_id: str
    changes: list[Change] = field(default_factory=list)
    happenings: dict[UUID, list[Happening]] = field(default_factory=dict)
    rings: set[str] = field(default_factory=set)

    def record(self, verb: str, object_id: UUID, summary: str, *, project_id: UUID | None) -> None:
        """Each change is recorded here once: it becomes one entry of the project's feed and one audit row."""
        self.changes.append(Change(verb=verb, object_id=object_id, summary=summary, project_id=project_id))

    def emit(
        self,
        sandbox_id: UUID,
        type: SandboxEventType,  # noqa: A002 - the word of the contract
        payload: Mapping[str, Any],
        *,
        source: EventSource = EventSource.SYSTEM,
    ) -> None:
        """An event of this server's own on a sandbox's stream."""
        self.append(sandbox_id, [Happening(type=type, source=source, payload=payload)])

    def append(self, sandbox_id: UUID, happenings: Sequence[Happening]) -> None:
        self.happenings.setdefault(sandbox_id, []).extend(happenings)

    def ring(self, topic: str) -> None:
        """After the commit, wake who listens there."""
        self.rings.add(topic)


@asynccontextmanager
async def begin(db: Database, bus: Bus | None, principal: Principal, *, request_id: str) -> AsyncIterator[Transaction]:
    """Commit what was done together with its traces, then ring for those who watch; a command has no bus to ring."""
    seqs: dict[UUID, int] = {}
    async with db.writing() as session:
        transaction = Transaction(session=session, principal=principal, request_id=request_id)
        yield transaction
        await _write_audit(transaction)
        projects = {change.project_id for change in transaction.changes if change.project_id}
        for stream_id in sorted(projects | transaction.happenings.keys()):
            write = _write_feed if stream_id in projects else _write_events
            seqs[stream_id] = await write(transaction, stream_id)
    if bus is None:
        return
    for stream_id, seq in seqs.items():
        bus.ring(streams.topic(stream_id), seq)
    for topic in transaction.rings | ({WORK} if projects else set()):
        bus.ring(topic, 0)


async def _write_audit(transaction: Transaction) -> None:
    if not transaction.changes:
        return
    rows = [
        {
            "id": ids.new(),
            "project_id": change.project_id,
            "actor_kind": transaction.principal.kind,
            "actor_id": transaction.principal.id,
            "action": change.verb,
            "object_kind": change.object_kind,
            "object_id": change.object_id,
            "request_id": transaction.request_id,
        }
        for change in transaction.changes
    ]
    await transaction.session.execute(insert(AuditEntry), rows)


async def _write_feed(transaction: Transaction, project_id: UUID) -> int:
    """The stream's row is the last lock that a transaction takes, so that no two can wait for each other here."""
    stream = await streams.lock(transaction.session, project_id)
    entries = [
        {
            "id": ids.new(),
            "verb": change.verb,
            "summary": change.summary,
            "actor": transaction.principal.name,
            "actor_kind": transaction.principal.kind,
            "subject_kind": change.object_kind,
            "subject_id": change.object_id,
        }
        for change in transaction.changes
        if change.project_id == project_id
    ]
    seqs = await streams.advance(transaction.session, stream, entries)
    rows = [{"stream_id": project_id, "seq": seq, **entry} for seq, entry in zip(seqs, entries, strict=True)]
    await transaction.session.execute(insert(Activity), rows)
    return seqs[-1]


async def _write_events(transaction: Transaction, sandbox_id: UUID) -> int:
    happenings = transaction.happenings[sandbox_id]
    stream = await streams.lock(transaction.session, sandbox_id)
    now = await transaction.session.scalar(select(clock.now()))
    entries = [
        {
            "id": ids.new(),
            "type": happening.type,
            "source": happening.source,
            "turn": happening.turn,
            "payload": happening.payload,
            "occurred_at": happening.occurred_at or now,
            "producer_seq": happening.producer_seq,
            "hash": happening.hash,
        }
        for happening in happenings
    ]
    seqs = await streams.advance(transaction.session, stream, entries)
    rows = [{"stream_id": sandbox_id, "seq": seq, **entry} for seq, entry in zip(seqs, entries, strict=True)]
    await transaction.session.execute(insert(Event), rows)
    return seqs[-1]
