"""What people may write: every refusal names its place in the input, and all of them are told at once."""

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from app.errors import BadUserInput, DomainError, InvalidInput, Several

LINE_CHARS = 200
BLOCK_CHARS = 64_000
KEY_CHARS = 200
IDS = ("_id", "blocked_by", "depends_on")


class Checks:
    """Collects refusals: `with Checks() as checks: …` raises them together at its end."""

    def __init__(self) -> None:
        self.refusals: list[DomainError] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is not None or not self.refusals:
            return
        if len(self.refusals) == 1:
            raise self.refusals[0]
        raise Several(self.refusals)

    def refuse(self, message: str, path: Sequence[str]) -> None:
        self.refusals.append(InvalidInput(message, path=path))

    def line(self, value: str, *path: str, chars: int = LINE_CHARS) -> str:
        """One line of text that says something; surrounding space is not part of it."""
        value = value.strip()
        if problem := unstorable(value) or (
            "cannot have line breaks or control characters" if _controls(value) else ""
        ):
            self.refuse(f"{_named(path)} {problem}.", path)
        elif not _visible(value):
            self.refuse(f"{_named(path)} cannot be empty.", path)
        elif len(value) > chars:
            self.refuse(f"{_named(path)} has {len(value)} characters; {chars} is the most.", path)
        return value

    def block(self, value: str, *path: str, chars: int = BLOCK_CHARS) -> str:
        """Text of any shape, which may be empty."""
        if problem := unstorable(value):
            self.refuse(f"{_named(path)} {problem}.", path)
        elif len(value) > chars:
            self.refuse(f"{_named(path)} has {len(value)} characters; {chars} is the most.", path)
        return value

    def between(self, value: float, low: float, high: float, *path: str) -> None:
        if not low <= value <= high:  # also what a NaN answers
            self.refuse(f"{_named(path)} must be between {low:,} and {high:,}.", path)

    def at_most(self, values: Sequence[object], limit: int, *path: str) -> None:
        if len(values) > limit:
            self.refuse(f"{_named(path)} has {len(values)} entries; {limit} is the most.", path)


def unstorable(value: str) -> str:
    """Why Postgres, or a client, could not hold this text; empty when it can."""
    if "\0" in value:
        return "cannot have a NUL character"
    try:
        value.encode()
    except UnicodeEncodeError:
        return "cannot have half a surrogate pair"
    return ""


def searchable(value: str) -> str:
    """Text of a query's argument, where a refusal is the whole answer."""
    if problem := unstorable(value) or ("is too long" if len(value) > LINE_CHARS else ""):
        raise BadUserInput(f"The text to search for {problem}.")
    return value.strip()


def _visible(value: str) -> bool:
    """Spaces, joiners and other format characters alone say nothing."""
    return any(unicodedata.category(character)[0] not in "CZ" for character in value)


def _named(path: Sequence[str]) -> str:
    """The last name on the path; an entry of a list goes by the list's name."""
    return f"{path[-2]}[{path[-1]}]" if len(path) > 1 and path[-1].isdecimal() else path[-1]


def _controls(value: str) -> bool:
    return any(unicodedata.category(character) in ("Cc", "Zl", "Zp") for character in value)


def require_storable(given: Any, *path: str) -> None:
    """Refuse a whole input that holds text which cannot be stored, naming each place."""
    refusals = list(_unstorable_places(given, path))
    if len(refusals) == 1:
        raise refusals[0]
    if refusals:
        raise Several(refusals)


def camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(map(str.capitalize, rest))


def _unstorable_places(given: Any, path: Sequence[str]) -> Iterator[DomainError]:
    if isinstance(given, str):
        if problem := unstorable(given):
            yield InvalidInput(f"{_named(path)} {problem}.", path=path)
    elif isinstance(given, Mapping):
        for name, value in given.items():
            if not name.endswith(IDS):  # what is wrong with an id is always that there is nothing with it
                yield from _unstorable_places(value, [*path, camel(name)])
    elif isinstance(given, list | tuple):
        for place, value in enumerate(given):
            yield from _unstorable_places(value, [*path, str(place)])
