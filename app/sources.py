"""Streams to follow: how the rows of one, or of a part of it, are read, and how many of them make one payload."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import orjson
from sqlalchemy import Select, bindparam, select
from sqlalchemy.ext.asyncio import AsyncSession

from app.enums import SandboxEventType
from app.long_texts import LONG_BYTES
from app.models import Activity, Event

PAGE_BYTES = 256 << 10  # beyond which a payload takes no further row
ROW_BYTES = 500  # of a row beside its payload


def _part(table: type[Event] | type[Activity]) -> Select[Any]:
    here = table.stream_id == bindparam("stream_id")
    between = table.seq > bindparam("after"), table.seq <= bindparam("upto")
    return select(table).where(here, *between).order_by(table.seq).limit(bindparam("most"))


PARTS = {table: _part(table) for table in (Event, Activity)}  # to make them anew is a fifth of reading a small part


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One stream, or the part of it that somebody wants."""

    stream_id: UUID
    project_id: UUID  # whose members may read it
    table: type[Event] | type[Activity]
    types: frozenset[SandboxEventType] | None = None  # only these; None: all

    def wants(self, row: Any) -> bool:
        return self.types is None or row.type in self.types

    async def rows(self, session: AsyncSession, after: int, upto: int, limit: int) -> Sequence[Any]:
        given = {"stream_id": self.stream_id, "after": after, "upto": upto, "most": limit}
        if self.types is None:
            return (await session.scalars(PARTS[self.table], given)).all()
        return (await session.scalars(PARTS[self.table].where(Event.type.in_(self.types)), given)).all()


def fitting(rows: Sequence[Any]) -> Sequence[Any]:
    """As many of them as one payload takes, and one at least."""
    size = 0
    for number, row in enumerate(rows):
        size += size_of(row)
        if number and size > PAGE_BYTES:
            return rows[:number]
    return rows


def size_of(row: Any) -> int:
    """About how large a row is, and at least how large the texts are that lie beside it."""
    payload = getattr(row, "payload", None) or {}
    beside = sum(isinstance(value, dict) and "blob" in value for value in payload.values())
    return ROW_BYTES + _encoded_bytes(payload) + LONG_BYTES * beside


def _encoded_bytes(payload: Mapping[str, Any]) -> int:
    try:
        return len(orjson.dumps(payload))
    except TypeError:  # a number beyond 64 bits, which Postgres keeps whole
        return len(str(payload))
