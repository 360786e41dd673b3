"""What became of the files in a sandbox: each edit as it was reported, and all together against the branch's base."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from sqlalchemy import ARRAY, BigInteger, Boolean, Text, Uuid, and_, column, func, literal, select, true, values
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.ext.asyncio import AsyncSession

from app import reported
from app.enums import FileChangeKind, SandboxEventType
from app.errors import LimitReached
from app.models import Event

MOST_CHANGES = 2_000  # of one sandbox; whoever changed more is read through the events
NOW = (1 << 63) - 1  # later than every event
HEADERS = {"new file mode": FileChangeKind.CREATED, "deleted file mode": FileChangeKind.DELETED}
RENAMED_FROM = "rename from "


class Place(NamedTuple):
    """A sandbox, and the event up to which its files are told."""

    sandbox_id: UUID
    at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A file as one edit left it. A `net` one is told by its diff from the base, else by the edit itself."""

    event: Event
    diff: str | reported.Blob
    net: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What the text of a diff says."""

    kind: FileChangeKind
    previous_path: str | None
    additions: int
    deletions: int


def edit(event: Event) -> Change:
    return Change(event=event, diff=reported.long_text(event.stream_id, event.payload, "diff"), net=False)


async def changes(session: AsyncSession, places: Sequence[Place]) -> Mapping[Place, list[Change] | LimitReached]:
    """Of each path the last edit until then, by path. What is as it was at the base is not told."""
    last = await _last_edits(session, places)
    told = await _read(session, [one for found in last.values() if len(found) <= MOST_CHANGES for one in found])
    return {place: _net(last[place], told) for place in places}


def read(diff: str) -> Told:
    """Read one file's diff as `git diff` writes it."""
    kind, previous_path = FileChangeKind.MODIFIED, None
    head, _, hunks = diff.partition("\n@@")
    for line in head.split("\n"):
        if line.startswith(RENAMED_FROM):
            kind, previous_path = FileChangeKind.RENAMED, _unquoted(line.removeprefix(RENAMED_FROM))
        kind = next((told for header, told in HEADERS.items() if line.startswith(header)), kind)
    additions, deletions = hunks.count("\n+"), hunks.count("\n-")
    return Told(kind=kind, previous_path=previous_path, additions=additions, deletions=deletions)


async def _last_edits(session: AsyncSession, places: Sequence[Place]) -> Mapping[Place, list[tuple[UUID, int]]]:
    """The last edit of each path that is still a path then. Whoever renames a file touches both of its paths."""
    asked = (
        func.unnest(
            literal([place.sandbox_id for place in places], ARRAY(Uuid())),
            literal([place.at for place in places], ARRAY(BigInteger())),
        )
        .table_valued("stream_id", "at")
        .render_derived(name="asked")
    )
    path, previous = Event.payload["path"].astext, Event.payload["previousPath"].astext
    touched = (
        values(column("path", Text), column("stays", Boolean), name="touched")
        .data([(path, True), (previous, False)])
        .lateral()
    )
    until_then = and_(Event.stream_id == asked.c.stream_id, Event.seq <= asked.c.at)
    last = (
        select(asked.c.stream_id, asked.c.at, Event.seq, touched.c.path, touched.c.stays)
        .select_from(asked)
        .join(Event, until_then)
        .join(touched, true())
        .where(Event.type == SandboxEventType.FILE_EDITED, touched.c.path.is_not(None))
        .ext(distinct_on(asked.c.stream_id, asked.c.at, touched.c.path))
        .order_by(asked.c.stream_id, asked.c.at, touched.c.path, Event.seq.desc(), touched.c.stays.desc())
        .subquery()
    )
    found = await session.execute(
        select(last.c.stream_id, last.c.at, last.c.seq).where(last.c.stays).order_by(last.c.path)
    )
    edits: defaultdict[Place, list[tuple[UUID, int]]] = defaultdict(list)
    for stream_id, at, seq in found:
        edits[Place(stream_id, at)].append((stream_id, seq))
    return edits


async def _read(session: AsyncSession, wanted: Sequence[tuple[UUID, int]]) -> Mapping[tuple[UUID, int], Event]:
    asked = (
        func.unnest(
            literal([stream_id for stream_id, _ in wanted], ARRAY(Uuid())),
            literal([seq for _, seq in wanted], ARRAY(BigInteger())),
        )
        .table_valued("stream_id", "seq")
        .render_derived(name="asked")
    )
    same = and_(Event.stream_id == asked.c.stream_id, Event.seq == asked.c.seq)
    found = await session.scalars(select(Event).join(asked, same))
    return {(event.stream_id, event.seq): event for event in found}


def _net(edits: Sequence[tuple[UUID, int]], told: Mapping[tuple[UUID, int], Event]) -> list[Change] | LimitReached:
    if len(edits) > MOST_CHANGES:
        return LimitReached(f"It has changed more than {MOST_CHANGES:,} files; its FILE_EDITED events name them all.")
    return [change for change in (_from_base(told[one]) for one in edits) if change.diff != ""]


def _from_base(event: Event) -> Change:
    if event.payload.get("net") is None:
        return edit(event)
    return Change(event=event, diff=reported.long_text(event.stream_id, event.payload, "net"), net=True)


def _unquoted(path: str) -> str:
    """Git writes a path with odd characters in quotes, each odd byte as three octal digits."""
    if not path.startswith('"'):
        return path
    try:
        raw = path[1:-1].encode("latin-1", "backslashreplace").decode("unicode_escape")
    except UnicodeDecodeError:  # nothing that git wrote
        return path
    return raw.encode("latin-1", "replace").decode("utf-8", "replace")
