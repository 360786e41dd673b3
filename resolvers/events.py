"""Answers about what happened in a sandbox."""

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from app import feeds, files, histories, ids, paging, reported, sandboxes, streams
from app.enums import SandboxEventType
from app.errors import BadUserInput
from app.models import Event, Sandbox
from app.sources import Source
from app.usage import Usage
from resolvers.context import Context
from resolvers.files import text_of
from resolvers.histories import Around, EventList
from resolvers.live import Live, live

EDITS = frozenset({SandboxEventType.FILE_EDITED})


@dataclass(frozen=True, slots=True)
class Entry:
    """One event as it is told once, with the cursor that resumes after it."""

    row: Event
    cursor: str
    cuts: list[int] = field(default_factory=list)  # how long this telling lets a text be


class Check(NamedTuple):
    """One run of a project's check, as it was reported."""

    command: str
    passed: bool
    output: str | reported.Blob
    duration_ms: int


class Told(NamedTuple):
    events: list[Entry]
    cursor: str
    caught_up: bool
    reset: feeds.Reset | None


class ToldEdits(NamedTuple):
    changes: list[files.Change]
    seqs: list[int]
    cursor: str
    caught_up: bool
    reset: feeds.Reset | None


async def events_of(
    context: Context,
    sandbox: Sandbox,
    types: Sequence[Any] | None = None,
    sources: Sequence[Any] | None = None,
    **page: Any,
) -> paging.Page[Entry]:
    wanted = histories.Filter(types=_frozen(types), sources=_frozen(sources))
    found: paging.Page[Event] = await context.loaders.histories.pages.load(
        EventList(sandbox.id, wanted, paging.Arguments(**page))
    )
    entries = [Entry(row, cursor) for row, cursor in zip(found.rows, found.cursors, strict=True)]
    return paging.Page(entries, found.cursors, found.has_next, found.has_previous, found.count)


async def event_of(context: Context, sandbox: Sandbox, seq: int) -> Entry | None:
    found = await context.loaders.histories.events.load((sandbox.id, seq))
    return (await _entries(context, sandbox, [found]))[0] if found else None


async def events_around(context: Context, sandbox: Sandbox, seq: int, count: int | None) -> list[Entry]:
    size = count if count is not None else histories.MOST_AROUND
    if not 1 <= size <= histories.MOST_AROUND:
        raise BadUserInput(f"`count` must be between 1 and {histories.MOST_AROUND}.", path=["count"])
    found = await context.loaders.histories.around.load(Around(sandbox.id, seq, size))
    return await _entries(context, sandbox, found)


async def trajectory_of(context: Context, sandbox: Sandbox, **page: Any) -> paging.Page[Event]:
    """The event that opens each turn stands for it."""
    found: paging.Page[Event] = await context.loaders.histories.turn_pages.load((sandbox.id, paging.Arguments(**page)))
    return found


async def end_of_turn(context: Context, turn: Event) -> datetime | None:
    ended: datetime | None = await context.loaders.histories.turn_ends.load((turn.stream_id, turn.turn))
    return ended


async def words_of_turn(context: Context, turn: Event) -> str:
    """What the agent itself said; its helpers' words are among the events."""
    rows = await context.loaders.histories.turn_words.load((turn.stream_id, turn.turn))
    own = [row for row in rows if not row.payload.get("parent")]
    said = [await text_of(context, reported.long_text(row.stream_id, row.payload, "text")) for row in own]
    return "\n\n".join(said)


async def events_of_turn(context: Context, turn: Event) -> list[Entry]:
    rows = await context.loaders.histories.turn_events.load((turn.stream_id, turn.turn))
    stream = await context.loaders.streams.load(turn.stream_id)
    return [Entry(row, str(streams.Cursor(stream.epoch, row.seq))) for row in rows]


async def text_of_event(context: Context, entry: Entry) -> str:
    return await text_of(context, reported.long_text(entry.row.stream_id, entry.row.payload, "text"))


async def remark_of(context: Context, entry: Entry) -> str | None:
    payload = entry.row.payload
    name = "text" if "text" in payload else "message"
    return await text_of(context, reported.long_text(entry.row.stream_id, payload, name)) or None


def output_of(context: Context, entry: Entry, max_chars: int | None = None) -> Awaitable[str]:
    """Notes at once, before anything is awaited, how much was asked for: `truncated` of the same answer reads it."""
    if max_chars is not None:
        if max_chars < 0:
            raise BadUserInput("`maxChars` cannot be negative.", path=["maxChars"])
        entry.cuts.append(max_chars)
    return _output(context, entry, max_chars)


async def output_is_cut(context: Context, entry: Entry) -> bool:
    if reported.truth(entry.row.payload, "truncated"):
        return True
    return bool(entry.cuts) and len(await _output(context, entry)) > min(entry.cuts)


def check_of(context: Context, entry: Entry) -> Check | None:
    if entry.row.type is not SandboxEventType.CHECK_COMPLETED:
        return None
    return read_check(entry.row.payload, entry.row.stream_id)


def read_check(given: Mapping[str, Any], sandbox_id: Any) -> Check:
    return Check(
        reported.text(given, "command"),
        reported.truth(given, "passed"),
        reported.long_text(sandbox_id, given, "output"),
        reported.number(given, "durationMs") or 0,
    )


async def output_of_check(context: Context, check: Check) -> str:
    return await text_of(context, check.output)


async def summary_of(context: Context, entry: Entry) -> str:
    return await text_of(context, reported.long_text(entry.row.stream_id, entry.row.payload, "summary"))


async def usage_of(context: Context, entry: Entry) -> Usage:
    usage: Usage = await context.loaders.usage_of_sandboxes.load(entry.row.stream_id)
    return usage


async def follow(
    context: Context, root: Any, sandbox_id: str, after: str | None = None, types: Sequence[Any] | None = None
) -> Live:
    wanted = None if types is None else frozenset(types)
    return live(context, await _source(context, sandbox_id, wanted), after, _told)


async def follow_edits(context: Context, root: Any, sandbox_id: str, after: str | None = None) -> Live:
    return live(context, await _source(context, sandbox_id, EDITS), after, _told_edits)


async def _source(context: Context, sandbox_id: str, types: frozenset[SandboxEventType] | None) -> Source:
    async with context.services.db.reading() as session:  # no loaders, which would stay as long as the subscription
        [sandbox] = await sandboxes.by_ids(session, [ids.require(sandbox_id, "sandbox", "sandboxId")])
    return Source(stream_id=sandbox.id, project_id=sandbox.project_id, table=Event, types=types)


def _told(batch: feeds.Batch) -> Told:
    entries = [Entry(row, str(streams.Cursor(batch.end.epoch, row.seq))) for row in batch.rows]
    return Told(entries, str(batch.end), batch.caught_up, batch.reset)


def _told_edits(batch: feeds.Batch) -> ToldEdits:
    changes, seqs = [files.edit(row) for row in batch.rows], [row.seq for row in batch.rows]
    return ToldEdits(changes, seqs, str(batch.end), batch.caught_up, batch.reset)


async def _output(context: Context, entry: Entry, max_chars: int | None = None) -> str:
    output = await text_of(context, reported.long_text(entry.row.stream_id, entry.row.payload, "output"))
    return output[:max_chars]


async def _entries(context: Context, sandbox: Sandbox, rows: Sequence[Event]) -> list[Entry]:
    stream = await context.loaders.streams.load(sandbox.id)
    return [Entry(row, str(streams.Cursor(stream.epoch, row.seq))) for row in rows]


def _frozen(values: Sequence[Any] | None) -> tuple[Any, ...] | None:
    return None if values is None else tuple(dict.fromkeys(values))
