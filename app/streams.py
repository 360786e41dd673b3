"""Numbered, append-only streams. Seq order is commit order, without holes: the row is locked before numbering."""

import base64
import hashlib
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from sqlalchemy import Text, cast, func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from app import ids
from app.errors import BadUserInput
from app.models import Stream

EPOCH_BYTES = 6
CURSOR_CHARS = 64
LAST = (1 << 63) - 1  # no seq is higher


@dataclass(frozen=True, slots=True)
class Cursor:
    """A place in a stream: everything up to and including `seq` has been seen."""

    epoch: str
    seq: int

    def __str__(self) -> str:
        return base64.urlsafe_b64encode(f"{self.epoch}:{self.seq}".encode()).decode().rstrip("=")


class Extent(NamedTuple):
    """Which places a stream had when it was read."""

    epoch: str
    first_seq: int
    last_seq: int

    def has(self, place: Cursor) -> bool:
        """Whether it is there still, and all that came after it."""
        return place.epoch == self.epoch and self.first_seq - 1 <= place.seq <= self.last_seq


class End(NamedTuple):
    """Where a stream ended when it was read."""

    last_seq: int
    digest: bytes

    def after(self, kind: str, entry_ids: Iterable[UUID]) -> "End":
        """Where it ends with these entries, in this order.

        `kind` begins their public ids, which are all that the digest takes of them: so readers compute it too.
        """
        keys = [ids.encode(kind, entry_id) for entry_id in entry_ids]
        return End(self.last_seq + len(keys), chained(self.digest, keys))


def parse(text: str, *, name: str = "after") -> Cursor:
    try:
        if len(text) > CURSOR_CHARS:
            raise ValueError(text)
        epoch, _, seq = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode("ascii").partition(":")
        cursor = Cursor(epoch, int(seq))
    except ValueError as error:
        raise BadUserInput(f"`{name}` is not a cursor of this stream.", path=[name]) from error
    if str(cursor) != text or not 0 <= cursor.seq < 1 << 63:
        raise BadUserInput(f"`{name}` is not a cursor of this stream.", path=[name])
    return cursor


async def create(session: AsyncSession, projects: Mapping[UUID, UUID]) -> None:
    """New streams: for each its id, and the project that it belongs to."""
    rows = [
        {"id": stream_id, "project_id": project_id, "epoch": secrets.token_hex(EPOCH_BYTES), "digest": bytes(32)}
        for stream_id, project_id in projects.items()
    ]
    await session.execute(insert(Stream), rows)


async def lock(session: AsyncSession, stream_id: UUID) -> End:
    """Take the stream for this transaction. Nothing may be numbered before this statement has returned."""
    found = await session.execute(
        select(Stream.last_seq, Stream.digest).where(Stream.id == stream_id).with_for_update()
    )
    return End(*found.one())


async def advance(session: AsyncSession, stream_id: UUID, end: End, *, added_bytes: int) -> None:
    """From now on it ends here. This transaction has locked it."""
    values = {"last_seq": end.last_seq, "digest": end.digest, "size_bytes": Stream.size_bytes + added_bytes}
    await session.execute(
        update(Stream).where(Stream.id == stream_id).values(values).execution_options(synchronize_session=False)
    )


def chained(digest: bytes, public_ids: Iterable[str]) -> bytes:
    """The digest of a stream after these entries; before its first one it is 32 zero bytes."""
    for public_id in public_ids:
        digest = hashlib.sha256(digest + public_id.encode()).digest()
    return digest


async def read(session: AsyncSession, stream_id: UUID) -> Stream | None:
    found = await session.scalars(select(Stream).where(Stream.id == stream_id))
    return found.one_or_none()


async def by_ids(session: AsyncSession, stream_ids: Sequence[UUID]) -> Sequence[Stream]:
    found = await session.scalars(select(Stream).where(Stream.id.in_(stream_ids)))
    return found.all()


async def extents(session: AsyncSession, stream_ids: Sequence[UUID]) -> Mapping[UUID, Extent]:
    found = await session.execute(
        select(Stream.id, Stream.epoch, Stream.first_seq, Stream.last_seq).where(Stream.id.in_(stream_ids))
    )
    return {stream_id: Extent(epoch, first_seq, last_seq) for stream_id, epoch, first_seq, last_seq in found}


async def renew(session: AsyncSession) -> int:
    """A new epoch for each stream, so that no cursor from before is good any more; answers how many there are."""
    drawn = func.replace(cast(func.gen_random_uuid(), Text), "-", "")
    renewed = await session.execute(
        update(Stream)
        .values(epoch=func.left(drawn, 2 * EPOCH_BYTES))
        .returning(Stream.id)
        .execution_options(synchronize_session=False)
    )
    return len(renewed.all())


def topic(stream_id: UUID) -> str:
    return f"stream:{stream_id}"
