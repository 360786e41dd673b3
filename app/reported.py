"""What a worker reported, read without trusting its shape: what is not there, or not what it should be, is empty."""

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from app.enums import Described

LARGEST = (1 << 31) - 1  # of GraphQL's Int

Word = TypeVar("Word", bound=Described)


class Blob(NamedTuple):
    """The place of something that was too large for its event."""

    sandbox_id: UUID
    sha256: bytes


def text(given: Mapping[str, Any], name: str) -> str:
    value = given.get(name)
    return value if isinstance(value, str) else ""


def line(given: Mapping[str, Any], name: str) -> str | None:
    return text(given, name) or None


def truth(given: Mapping[str, Any], name: str) -> bool:
    return given.get(name) is True


def number(given: Mapping[str, Any], name: str) -> int | None:
    """A whole number; one beyond what clients can hold is told as the largest of those."""
    value = given.get(name)
    whole = isinstance(value, int | float) and not isinstance(value, bool)
    return max(-LARGEST, min(int(value), LARGEST)) if whole else None  # type: ignore[arg-type]


def word(given: Mapping[str, Any], name: str, words: type[Word]) -> Word | None:
    value = given.get(name)
    return words.__members__.get(value) if isinstance(value, str) else None


def table(given: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = given.get(name)
    return value if isinstance(value, dict) else {}


def long_text(sandbox_id: UUID, given: Mapping[str, Any], name: str) -> str | Blob:
    """Text as it stands in its event, or where it lies instead."""
    named = table(given, name).get("blob")
    if not isinstance(named, str):
        return text(given, name)
    try:
        return Blob(sandbox_id, bytes.fromhex(named))
    except ValueError:
        return ""
