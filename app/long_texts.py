"""Texts that are too long for their event: kept as blobs, with `{"blob": "<sha256>"}` in their place."""

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

import orjson
from sqlalchemy.ext.asyncio import AsyncSession

from app import blobs
from app.enums import SandboxEventType
from app.errors import LimitReached

FOLLOWED: Mapping[SandboxEventType, Sequence[str]] = {  # where whoever reads an event follows a text to its blob
    SandboxEventType.TOOL_USE: (),
    SandboxEventType.TOOL_COMPLETED: ("output",),
    SandboxEventType.CHECK_COMPLETED: ("output",),
    SandboxEventType.FILE_EDITED: ("diff", "net"),
    SandboxEventType.COMPLETED: ("summary",),
}
WORDS = ("text", "message")  # of every other one: the first of these that it has
LONG_BYTES = 64 << 10
EVENT_BYTES = 256 << 10  # of a payload, without what was moved out of it
SHORT_BYTES = 4 << 10  # not worth moving; the beginning of a text that cannot be kept


class Parted(NamedTuple):
    payload: Mapping[str, Any]
    size_bytes: int
    moved: Mapping[str, bytes]  # by the names that they had in the payload


def part(kind: SandboxEventType, payload: Mapping[str, Any]) -> Parted:
    """Long texts move out; where the event is still too large, others too, the longest first."""
    size, moved = len(orjson.dumps(payload)), dict[str, bytes]()
    if size <= LONG_BYTES:
        return Parted(payload, size, moved)
    followed = FOLLOWED.get(kind, [name for name in WORDS if name in payload][:1])
    texts = {name: text.encode() for name in followed if isinstance(text := payload.get(name), str)}
    for name, text in sorted(texts.items(), key=lambda item: len(item[1]), reverse=True):
        if len(text) <= (SHORT_BYTES if size > EVENT_BYTES else LONG_BYTES):
            break
        moved[name] = text
        payload = {**payload, name: {"blob": hashlib.sha256(text).hexdigest()}}
        size = len(orjson.dumps(payload))
    return Parted(payload, size, moved)


async def keep(
    session: AsyncSession, sandbox_id: UUID, kind: SandboxEventType, payload: Mapping[str, Any]
) -> Mapping[str, Any]:
    """What remains in the event; its long texts lie beside it. It is masked already, and so is what they are named by.

    Of a text for which the sandbox has no room the beginning stays, as a worker would cut it.
    """
    payload, _, moved = part(kind, payload)
    for text in moved.values():
        packed = await asyncio.to_thread(blobs.pack_masked, text)
        try:
            await blobs.put(session, sandbox_id, packed)
        except LimitReached as full:
            payload = _cut(payload, packed.sha256.hex(), text, full.message)
    return payload


def _cut(payload: Mapping[str, Any], sha256: str, text: bytes, why: str) -> Mapping[str, Any]:
    beginning = text[:SHORT_BYTES].decode("utf-8", "ignore")
    kept = {name: beginning if value == {"blob": sha256} else value for name, value in payload.items()}
    return {"sizeBytes": len(text), **kept, "truncated": True, "reason": why}
