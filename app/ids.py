"""Public ids: TypeIDs, a readable prefix and a UUIDv7 in 26 characters of Crockford's base32."""

import os
import time
from uuid import UUID

from app.errors import NotFound

ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
ENCODED_CHARS = 26
_PAIRS = [first + second for first in ALPHABET for second in ALPHABET]  # two characters at once are half the work
_SHIFTS = range(5 * (ENCODED_CHARS - 2), -1, -10)
_VALUES = {character: value for value, character in enumerate(ALPHABET)}


def new() -> UUID:
    """A UUIDv7: ids made later sort later, to the millisecond."""
    milliseconds = time.time_ns() // 1_000_000
    value = (milliseconds << 80) | int.from_bytes(os.urandom(10))
    value = (value & ~(0xF << 76)) | (0x7 << 76)
    value = (value & ~(0x3 << 62)) | (0x2 << 62)
    return UUID(int=value)


def encode(prefix: str, value: UUID) -> str:
    number = value.int
    return f"{prefix}_{''.join([_PAIRS[(number >> shift) & 1023] for shift in _SHIFTS])}"


def decode(text: str) -> tuple[str, UUID] | None:
    """The prefix and the UUID, or None for anything that `encode` could not have written."""
    prefix, separator, encoded = text.rpartition("_")
    if not separator or not prefix or len(encoded) != ENCODED_CHARS or encoded[0] > "7":
        return None
    number = 0
    for character in encoded:
        value = _VALUES.get(character)
        if value is None:
            return None
        number = (number << 5) | value
    return prefix, UUID(int=number)


def require(text: str, prefix: str, *path: str) -> UUID:
    """The key behind a public id of this kind; anything else answers like an id of nothing."""
    decoded = decode(text)
    if decoded is None or decoded[0] != prefix:
        raise NotFound(path=path)
    return decoded[1]
