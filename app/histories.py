"""What happened in sandboxes, for those who read it: in pages, around an event, turn by turn, and live."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import (
    ARRAY,
    BigInteger,
    ColumnElement,
    Integer,
    Select,
    Uuid,
    and_,
    exists,
    func,
    literal,
    or_,
    select,
    true,
    tuple_,
)
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased

from app import paging, streams
from app.activity import Cursors
from app.enums import EventSource, SandboxEventType
from app.errors import BadUserInput
from app.models import Blob, Event, Sandbox, Stream

MOST_AROUND = 100
MOST_IN_TURN = 1_000  # a turn of more is read through the pages
IN_ORDER = paging.Order(Event.seq)
BY_TURN = paging.Order(Event.turn)

Place = tuple[UUID, int]  # a sandbox, with the seq of an event or the number of a turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    types: tuple[SandboxEventType, ...] | None = None
    sources: tuple[EventSource, ...] | None = None


async def pages(
    session: AsyncSession, wanted: Filter, arguments: paging.Arguments, *, counts: Mapping[UUID, paging.Count]
) -> Mapping[UUID, paging.Page[Event] | BadUserInput]:
    """The same page of each sandbox's events. Cursors are the stream's own, whatever the filter."""
    extents = await streams.extents(session, list(counts))
    parents = {sandbox_id: (Cursors(extents[sandbox_id]), count) for sandbox_id, count in counts.items()}

    def of_stream(stream_id: ColumnElement[UUID]) -> Select[Event]:
        return select(Event).where(Event.stream_id == stream_id, *_conditions(wanted))

    return await paging.pages(session, of_stream, IN_ORDER, arguments, parents=parents)


async def counts(session: AsyncSession, sandbox_ids: Sequence[UUID], wanted: Filter) -> Mapping[UUID, int]:
    found = await session.execute(
        select(Event.stream_id, func.count())
        .where(Event.stream_id.in_(sandbox_ids), *_conditions(wanted))
        .group_by(Event.stream_id)
    )
    return dict(found.all())


async def at(session: AsyncSession, places: Sequence[Place]) -> Mapping[Place, Event]:
    """The events of these seqs, as far as they are there."""
    found = await session.scalars(select(Event).where(tuple_(Event.stream_id, Event.seq).in_(places)))
    return {(event.stream_id, event.seq): event for event in found}


async def around(session: AsyncSession, places: Sequence[Place], *, count: int) -> Mapping[Place, list[Event]]:
    """So many events with that one in their middle; at an end of the stream those next to it. They have no holes."""
    asked = (
        func.unnest(
            literal([sandbox_id for sandbox_id, _ in places], ARRAY(Uuid())),
            literal([seq for _, seq in places], ARRAY(BigInteger())),
        )
        .table_valued("stream_id", "middle")
        .render_derived(name="asked")
    )
    latest_start = func.greatest(Stream.last_seq - count + 1, Stream.first_seq)
    start = func.greatest(func.least(asked.c.middle - count // 2, latest_start), Stream.first_seq)
    found = await session.execute(
        select(asked.c.middle, Event)
        .join(Stream, Stream.id == asked.c.stream_id)
        .join(Event, and_(Event.stream_id == Stream.id, Event.seq >= start, Event.seq < start + count))
        .order_by(Event.stream_id, asked.c.middle, Event.seq)
    )
    pages: defaultdict[Place, list[Event]] = defaultdict(list)
    for middle, event in found:
        pages[event.stream_id, middle].append(event)
    return pages


def turns(stream_id: ColumnElement[UUID]) -> Select[Event]:
    """The event that opens each turn stands for it."""
    earlier = aliased(Event)
    first = ~exists().where(earlier.stream_id == Event.stream_id, earlier.turn == Event.turn, earlier.seq < Event.seq)
    return select(Event).where(Event.stream_id == stream_id, Event.turn.is_not(None), first)


async def turn_counts(session: AsyncSession, sandbox_ids: Sequence[UUID]) -> Mapping[UUID, int]:
    found = await session.execute(
        select(Event.stream_id, func.count(Event.turn.distinct()))
        .where(Event.stream_id.in_(sandbox_ids))
        .group_by(Event.stream_id)
    )
    return dict(found.all())


async def turn_ends(session: AsyncSession, places: Sequence[Place]) -> Mapping[Place, datetime]:
    """When each of these turns ended; nothing for one that may still go on."""
    later = aliased(Event)
    over = or_(
        Sandbox.finished_at.is_not(None),
        exists().where(later.stream_id == Event.stream_id, later.turn > Event.turn),
    )
    found = await session.execute(
        select(Event.stream_id, Event.turn, func.max(Event.occurred_at))
        .join(Sandbox, Sandbox.id == Event.stream_id)
        .where(tuple_(Event.stream_id, Event.turn).in_(places), over)
        .group_by(Event.stream_id, Event.turn)
    )
    return {(stream_id, turn): ended for stream_id, turn, ended in found if turn is not None}


async def of_turns(session: AsyncSession, places: Sequence[Place], wanted: Filter) -> Mapping[Place, list[Event]]:
    """The events of each of these turns in order, so many at most."""
    asked = (
        func.unnest(
            literal([sandbox_id for sandbox_id, _ in places], ARRAY(Uuid())),
            literal([turn for _, turn in places], ARRAY(Integer())),
        )
        .table_valued("stream_id", "turn")
        .render_derived(name="asked")
    )
    inner = (
        select(Event)
        .where(Event.stream_id == asked.c.stream_id, Event.turn == asked.c.turn, *_conditions(wanted))
        .order_by(Event.seq)
        .limit(MOST_IN_TURN)
        .lateral()
    )
    entity = aliased(Event, inner)
    found = await session.scalars(select(entity).select_from(asked).join(inner, true()).order_by(entity.seq))
    turns: defaultdict[Place, list[Event]] = defaultdict(list)
    for event in found:
        assert event.turn is not None
        turns[event.stream_id, event.turn].append(event)
    return turns


async def transcript_sizes(session: AsyncSession, sandbox_ids: Sequence[UUID]) -> Mapping[UUID, int]:
    """Of those whose agent's session was kept."""
    kept = and_(Blob.sandbox_id == Sandbox.id, Blob.sha256 == Sandbox.transcript)
    found = await session.execute(
        select(Sandbox.id, Blob.size_bytes)
        .join(Blob, kept)
        .where(Sandbox.id.in_(sandbox_ids), Sandbox.session_id.is_not(None))
    )
    return dict(found.all())


async def logs(session: AsyncSession, sandbox_ids: Sequence[UUID]) -> Mapping[UUID, str]:
    """What the workers wrote, of those whose machines are gone."""
    found = await session.execute(
        select(Sandbox.id, Sandbox.log).where(Sandbox.id.in_(sandbox_ids), Sandbox.log.is_not(None))
    )
    return {sandbox_id: log for sandbox_id, log in found if log is not None}


def _conditions(wanted: Filter) -> list[Any]:
    conditions: list[Any] = []
    if wanted.types is not None:
        conditions.append(Event.type.in_(wanted.types))
    if wanted.sources is not None:
        conditions.append(Event.source.in_(wanted.sources))
    return conditions
