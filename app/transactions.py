"""One change of the world: who makes it, what it touches, and what it leaves in the feed and in the audit log."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

import orjson
from sqlalchemy import insert, text
from sqlalchemy.ext.asyncio import AsyncSession

from app import ids, streams
from app.auth import Principal
from app.bus import Bus
from app.db import Database
from app.enums import EventSource, SandboxEventType
from app.models import Activity, AuditEntry
from app.streams import End

WORK = "work"  # rung after every change of a project: a task may be due
EVENT_BYTES = 200  # of an event's row beside its payload, about

# All rows at once, as one array for each column; and what the worker reported of them its sandbox has taken.
# Without an effect when the stream ends somewhere else by now.
_ADD_EVENTS = text("""
    WITH advanced AS (
        UPDATE streams
        SET last_seq = :last_seq, digest = :digest, size_bytes = size_bytes + CAST(:added_bytes AS bigint)
        WHERE id = :stream_id AND last_seq = :last_seq_before AND digest = :digest_before
        RETURNING id
    ), accepted AS (
        UPDATE sandboxes SET accepted_through = :accepted_through, begun_secrets = CAST(:begun_secrets AS jsonb)
        FROM advanced
        WHERE sandboxes.id = advanced.id AND sandboxes.accepted_through < :accepted_through
    )
    INSERT INTO events (stream_id, seq, id, type, source, turn, payload, occurred_at, producer_seq, hash)
    SELECT
        advanced.id, CAST(:last_seq_before AS bigint) + given.place, given.id, given.type, given.source, given.turn,
        CAST(given.payload AS jsonb), coalesce(given.occurred_at, omoi_now()), given.producer_seq, given.hash
    FROM advanced, unnest(
        CAST(:id AS uuid[]), CAST(:type AS text[]), CAST(:source AS text[]), CAST(:turn AS integer[]),
        CAST(:payload AS text[]), CAST(:occurred_at AS timestamptz[]), CAST(:producer_seq AS bigint[]),
        CAST(:hash AS bytea[])
    ) WITH ORDINALITY AS given (id, type, source, turn, payload, occurred_at, producer_seq, hash, place)
""")


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
    ends: dict[UUID, End] = field(default_factory=dict)  # of streams, as far as they were read already
    begun_secrets: dict[UUID, Any] = field(default_factory=dict)  # what a worker's next texts may go on with
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
    entries: list[dict[str, Any]] = [
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
    size = sum(len(orjson.dumps(entry, default=str)) for entry in entries)
    before = await streams.lock(transaction.session, project_id)
    end = before.after("activity", [entry["id"] for entry in entries])
    await streams.advance(transaction.session, project_id, end, added_bytes=size)
    rows = [{"stream_id": project_id, "seq": seq, **entry} for seq, entry in enumerate(entries, before.last_seq + 1)]
    await transaction.session.execute(insert(Activity), rows)
    return end.last_seq


async def _write_events(transaction: Transaction, sandbox_id: UUID) -> int:
    """Where the stream ends was read before, or is read now; in between hardly anybody adds to it."""
    rows = _rows(transaction.happenings[sandbox_id])
    begun = transaction.begun_secrets.get(sandbox_id)
    rows["begun_secrets"] = orjson.dumps(begun).decode() if begun else None
    before = transaction.ends.get(sandbox_id)
    seq = await _add_events(transaction.session, sandbox_id, before, rows) if before else None
    if seq is None:
        before = await streams.lock(transaction.session, sandbox_id)
        seq = await _add_events(transaction.session, sandbox_id, before, rows)
    assert seq is not None
    return seq


def _rows(happenings: Sequence[Happening]) -> dict[str, Any]:
    return {
        "id": [ids.new() for _ in happenings],
        "type": [happening.type.value for happening in happenings],
        "source": [happening.source.value for happening in happenings],
        "turn": [happening.turn for happening in happenings],
        "payload": [orjson.dumps(happening.payload).decode() for happening in happenings],
        "occurred_at": [happening.occurred_at for happening in happenings],
        "producer_seq": [happening.producer_seq for happening in happenings],
        "hash": [happening.hash for happening in happenings],
    }


async def _add_events(session: AsyncSession, stream_id: UUID, before: End, rows: Mapping[str, Any]) -> int | None:
    """The last one's seq; None where the stream did not end there."""
    end = before.after("event", rows["id"])
    given = {
        "stream_id": stream_id,
        "last_seq": end.last_seq,
        "digest": end.digest,
        "last_seq_before": before.last_seq,
        "digest_before": before.digest,
        "accepted_through": max(filter(None, rows["producer_seq"]), default=0),
        "added_bytes": sum(map(len, rows["payload"])) + EVENT_BYTES * len(rows["id"]),
    }
    added = await session.execute(_ADD_EVENTS, {**given, **rows})
    return end.last_seq if added.rowcount else None  # type: ignore[attr-defined]
