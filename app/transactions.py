"""One change of the world: who makes it, what it touches, and what it leaves in the feed and in the audit log."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from uuid import UUID

from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncSession

from app import ids, streams
from app.auth import Principal
from app.bus import Bus
from app.db import Database
from app.models import Activity, AuditEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    verb: str  # "ticket.created": the object's kind, and what happened to it
    object_id: UUID
    summary: str
    project_id: UUID | None  # None: nobody's feed, only the audit log

    @property
    def object_kind(self) -> str:
        return self.verb.partition(".")[0]


@dataclass(slots=True, kw_only=True)
class Transaction:
    session: AsyncSession
    principal: Principal
    request_id: str
    changes: list[Change] = field(default_factory=list)

    def record(self, verb: str, object_id: UUID, summary: str, *, project_id: UUID | None) -> None:
        """Each change is recorded here once: it becomes one entry of the project's feed and one audit row."""
        self.changes.append(Change(verb=verb, object_id=object_id, summary=summary, project_id=project_id))


@asynccontextmanager
async def begin(db: Database, bus: Bus | None, principal: Principal, *, request_id: str) -> AsyncIterator[Transaction]:
    """Commit what was done together with its traces, then ring for those who watch; a command has no bus to ring."""
    rings: dict[UUID, int] = {}
    async with db.writing() as session:
        transaction = Transaction(session=session, principal=principal, request_id=request_id)
        yield transaction
        await _write_audit(transaction)
        for project_id in sorted({change.project_id for change in transaction.changes if change.project_id}):
            rings[project_id] = await _write_feed(transaction, project_id)
    for stream_id, seq in rings.items():
        if bus is not None:
            bus.ring(streams.topic(stream_id), seq)


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
