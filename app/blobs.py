"""What is too large for an event: kept once for its sandbox, by the hash of what the worker sent, masked and packed."""

import asyncio
import gzip
import hashlib
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from app.errors import BadUserInput, LimitReached
from app.masking import Mask
from app.models import Blob

LARGEST_BYTES = 64 << 20  # as it is sent, and as it is unpacked
QUOTA_BYTES = 1 << 30  # of one sandbox, as it is stored
HASH_BYTES = 32
GZIP = 16 + zlib.MAX_WBITS
PACKING = 3  # harder takes twice as long and saves a twelfth


class TooLarge(BadUserInput):
    def __init__(self) -> None:
        super().__init__(f"A blob has {LARGEST_BYTES >> 20} MiB at most, packed and unpacked.")


@dataclass(frozen=True, slots=True)
class Packed:
    """A blob on its way into its row."""

    sha256: bytes
    size_bytes: int  # of what the worker sent
    content: bytes


def parsed(text: str) -> bytes | None:
    """The hash that these 64 hexadecimal digits say."""
    if len(text) != 2 * HASH_BYTES or not set(text) <= set("0123456789abcdef"):
        return None
    return bytes.fromhex(text)


def pack(body: bytes, sha256: bytes, mask: Mask, *, gzipped: bool) -> Packed:
    """Unpack, check against the hash, mask and pack again: seconds of work for a large one, so not on the loop."""
    data = unpacked(body) if gzipped else body
    if len(data) > LARGEST_BYTES:
        raise TooLarge
    if hashlib.sha256(data).digest() != sha256:
        raise BadUserInput("The body is not what the hash in the path says; the hash is of the unpacked bytes.")
    return Packed(sha256, len(data), gzip.compress(mask.bytes_(data), PACKING, mtime=0))


def pack_masked(data: bytes) -> Packed:
    """What this server lays down itself, out of an event: masked already, so that its name tells no secret."""
    return Packed(hashlib.sha256(data).digest(), len(data), gzip.compress(data, PACKING, mtime=0))


def unpacked(body: bytes) -> bytes:
    """One gzip member, whole and nothing after it. What would grow too large is left as soon as it has."""
    stream = zlib.decompressobj(GZIP)
    try:
        data = stream.decompress(body, LARGEST_BYTES + 1)
    except zlib.error:
        raise BadUserInput("The body is no gzip.") from None
    if len(data) > LARGEST_BYTES:
        raise TooLarge
    if not stream.eof or stream.unused_data:
        raise BadUserInput("The body is no whole gzip.")
    return data


async def put(session: AsyncSession, sandbox_id: UUID, packed: Packed) -> bool:
    """Keep it; False when it was there already."""
    stored = await session.scalar(
        select(func.coalesce(func.sum(func.length(Blob.content)), 0)).where(Blob.sandbox_id == sandbox_id)
    )
    if int(stored or 0) + len(packed.content) > QUOTA_BYTES:
        raise LimitReached(f"A sandbox keeps {QUOTA_BYTES >> 30} GiB of blobs at most.")
    new = await session.scalar(
        insert(Blob)
        .values(sandbox_id=sandbox_id, sha256=packed.sha256, size_bytes=packed.size_bytes, content=packed.content)
        .on_conflict_do_nothing()
        .returning(Blob.sha256)
    )
    return new is not None


async def known(session: AsyncSession, sandbox_id: UUID, sha256: bytes) -> bool:
    found = await session.scalar(select(Blob.sha256).where(Blob.sandbox_id == sandbox_id, Blob.sha256 == sha256))
    return found is not None


async def read(session: AsyncSession, sandbox_id: UUID, sha256: bytes) -> bytes | None:
    return (await read_many(session, sandbox_id, [sha256])).get(sha256)


async def read_many(session: AsyncSession, sandbox_id: UUID, hashes: Sequence[bytes]) -> Mapping[bytes, bytes]:
    """Those of these that the sandbox has, unpacked. So much at once as one of them may be large."""
    size = await session.scalar(
        select(func.sum(Blob.size_bytes)).where(Blob.sandbox_id == sandbox_id, Blob.sha256.in_(hashes))
    )
    if int(size or 0) > LARGEST_BYTES:
        raise LimitReached(f"These texts are {size} bytes together; ask for {LARGEST_BYTES >> 20} MiB at most at once.")
    found = await session.execute(
        select(Blob.sha256, Blob.content).where(Blob.sandbox_id == sandbox_id, Blob.sha256.in_(hashes))
    )
    packed = dict(found.all())
    unpacking = (asyncio.to_thread(gzip.decompress, content) for content in packed.values())
    return dict(zip(packed, await asyncio.gather(*unpacking), strict=True))
