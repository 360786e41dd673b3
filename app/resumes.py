"""What an earlier try leaves to the next one: its session, and its files as far as they were recorded."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from app import blobs, files, reported
from app.enums import SandboxEventType
from app.errors import LimitReached
from app.files import NOW, Change, Place
from app.models import Event, Sandbox
from app.reported import Blob


async def transcript(session: AsyncSession, sandbox: Sandbox) -> bytes | None:
    return await blobs.read(session, sandbox.id, sandbox.transcript) if sandbox.transcript else None


async def edits(session: AsyncSession, sandbox: Sandbox) -> Mapping[str, Any]:
    """The base that its work began on, and the net change of each file from there."""
    found = await files.changes(session, [Place(sandbox.id, NOW)])
    changes = found[Place(sandbox.id, NOW)]
    if isinstance(changes, LimitReached):
        raise changes
    hashes = [change.diff.sha256 for change in changes if isinstance(change.diff, Blob)]
    large = await blobs.read_many(session, sandbox.id, hashes) if hashes else {}
    return {"base": await _base(session, sandbox), "changes": [_told(change, large) for change in changes]}


async def _base(session: AsyncSession, sandbox: Sandbox) -> str | None:
    started = await session.scalar(
        select(Event.payload)
        .where(Event.stream_id == sandbox.id, Event.type == SandboxEventType.STARTED)
        .order_by(Event.seq)
        .limit(1)
    )
    return reported.line(started or {}, "base")


def _told(change: Change, large: Mapping[bytes, bytes]) -> Mapping[str, Any]:
    payload = change.event.payload
    diff = large.get(change.diff.sha256, b"").decode(errors="replace") if isinstance(change.diff, Blob) else change.diff
    return {**{name: payload.get(name) for name in ("path", "previousPath", "kind")}, "net": diff}
