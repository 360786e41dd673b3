"""Keyset pages: a cursor is a place between rows, so pages stay put while rows come, at any depth for the same cost."""

import base64
import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar
from uuid import UUID

from sqlalchemy import ARRAY, ColumnElement, Select, Uuid, func, literal, select, true
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstrumentedAttribute, aliased

from app.errors import BadUserInput

DEFAULT_SIZE = 20
LARGEST_SIZE = 100
CURSOR_CHARS = 128
SEAL_BYTES = 8
LARGEST_KEY = (1 << 31) - 1  # of a list that is numbered

Row = TypeVar("Row")
Key = int | UUID
Count = Callable[[], Awaitable[int]]


class Cursors(Protocol):
    """How the places of one list are written, and which are refused."""

    def write(self, key: Key) -> str: ...

    def read(self, text: str, name: str, kind: type[Key]) -> Key: ...


@dataclass(frozen=True, slots=True)
class Arguments:
    """`first` and `after`, or `last` and `before`, as a client sent them."""

    first: int | None = None
    after: str | None = None
    last: int | None = None
    before: str | None = None

    def __post_init__(self) -> None:
        """Refused here, and not where many lists are read together and one would spoil all."""
        if self.first is not None and self.last is not None:
            raise BadUserInput("Ask for `first` or for `last`, not for both.")
        for name, size in (("first", self.first), ("last", self.last)):
            if size is not None and not 1 <= size <= LARGEST_SIZE:
                raise BadUserInput(f"`{name}` must be between 1 and {LARGEST_SIZE}.", path=[name])

    @property
    def backwards(self) -> bool:
        return self.last is not None

    @property
    def size(self) -> int:
        return self.first or self.last or DEFAULT_SIZE


@dataclass(frozen=True, slots=True)
class Page(Generic[Row]):
    rows: list[Row]
    cursors: list[str]
    has_next: bool
    has_previous: bool
    count: Count = field(repr=False)


@dataclass(frozen=True, slots=True)
class Sealed:
    """Cursors of one list as one account sees it. Another list's, or another account's, is refused."""

    scope: str

    def write(self, key: Key) -> str:
        value = f"{key:x}" if isinstance(key, int) else key.hex
        return base64.urlsafe_b64encode(self._seal(value) + value.encode()).decode().rstrip("=")

    def read(self, text: str, name: str, kind: type[Key]) -> Key:
        try:
            if len(text) > CURSOR_CHARS:
                raise ValueError(text)
            raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
            value = raw[SEAL_BYTES:].decode("ascii")
            key: Key = int(value, 16) if kind is int else UUID(hex=value)
        except ValueError as error:
            raise BadUserInput(f"`{name}` is not a cursor of this list.", path=[name]) from error
        beyond = isinstance(key, int) and not 0 <= key <= LARGEST_KEY
        if beyond or raw[:SEAL_BYTES] != self._seal(value) or self.write(key) != text:
            raise BadUserInput(f"`{name}` is not a cursor of this list.", path=[name])
        return key

    def _seal(self, value: str) -> bytes:
        """Tells lists apart; it guards no secret, since whoever may read the list may read all of it."""
        return hashlib.blake2b(f"{self.scope}\n{value}".encode(), digest_size=SEAL_BYTES).digest()


@dataclass(frozen=True, slots=True)
class Order:
    """The unique column by which a list is sorted."""

    column: InstrumentedAttribute[Any]
    descending: bool = False

    @property
    def kind(self) -> type[Key]:
        kind: type[Key] = self.column.type.python_type
        return kind

    def falls(self, arguments: Arguments) -> bool:
        """Whether the rows must be read from the greatest key down."""
        return self.descending != arguments.backwards

    def direction(self, arguments: Arguments) -> ColumnElement[Any]:
        return self.column.desc() if self.falls(arguments) else self.column.asc()

    def window(self, arguments: Arguments, cursors: Cursors) -> list[ColumnElement[bool]]:
        """The conditions that the cursors set."""
        conditions = []
        for name, text, further in (("after", arguments.after, True), ("before", arguments.before, False)):
            if text is not None:
                key = cursors.read(text, name, self.kind)
                conditions.append(self.column < key if further == self.descending else self.column > key)
        return conditions


async def page(
    session: AsyncSession,
    query: Select[Row],
    order: Order,
    arguments: Arguments,
    *,
    cursors: Cursors,
    count: Count,
) -> Page[Row]:
    size = arguments.size
    conditions = order.window(arguments, cursors)
    found = await session.scalars(query.where(*conditions).order_by(order.direction(arguments)).limit(size + 1))
    return cut(found.all(), order, arguments, cursors=cursors, count=count)


def cut(found: Sequence[Row], order: Order, arguments: Arguments, *, cursors: Cursors, count: Count) -> Page[Row]:
    """One row more than asked for was read: it only says that there is more."""
    rows, more = list(found[: arguments.size]), len(found) > arguments.size
    if arguments.backwards:
        rows.reverse()
    keys = [cursors.write(getattr(row, order.column.key)) for row in rows]
    has_next = arguments.before is not None or (more and not arguments.backwards)
    has_previous = arguments.after is not None or (more and arguments.backwards)
    return Page(rows=rows, cursors=keys, has_next=has_next, has_previous=has_previous, count=count)


async def pages(
    session: AsyncSession,
    query_of: Callable[[ColumnElement[UUID]], Select[Row]],
    order: Order,
    arguments: Arguments,
    *,
    parents: Mapping[UUID, tuple[Cursors, Count]],
) -> Mapping[UUID, Page[Row] | BadUserInput]:
    """The same page of many parents' lists, in one statement however many parents there are.

    A cursor belongs to one parent's list, so for all the others it is refused.
    """
    answers: dict[UUID, Page[Row] | BadUserInput] = {}
    wanted: dict[UUID, list[Row]] = {}
    conditions: list[ColumnElement[bool]] = []
    for parent, (cursors, _) in parents.items():
        try:
            conditions = order.window(arguments, cursors)
            wanted[parent] = []
        except BadUserInput as refusal:
            answers[parent] = refusal
    if wanted:
        ids = func.unnest(literal(list(wanted), ARRAY(Uuid()))).column_valued("parent")
        inner = (
            query_of(ids).where(*conditions).order_by(order.direction(arguments)).limit(arguments.size + 1).lateral()
        )
        entity = aliased(order.column.class_, inner)
        key = getattr(entity, order.column.key)
        found = await session.execute(
            select(ids, entity).join(inner, true()).order_by(ids, key.desc() if order.falls(arguments) else key.asc())
        )
        for parent, row in found:
            wanted[parent].append(row)
    for parent, rows in wanted.items():
        cursors, count = parents[parent]
        answers[parent] = cut(rows, order, arguments, cursors=cursors, count=count)
    return answers
