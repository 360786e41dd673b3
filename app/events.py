"""What a worker reports: numbered by itself, taken once, in order, without a hole."""

import functools
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple
from uuid import UUID

import orjson
from sqlalchemy import bindparam, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.sql.dml import ReturningUpdate

from app import attempts, clock, long_texts, messages, sandboxes, streams
from app.enums import DesiredState, EventSource, SandboxEventType, SandboxStatus
from app.errors import DomainError, InvalidInput, LimitReached, Unauthenticated
from app.masking import Lane, Mask
from app.models import Base, Event, Sandbox, Stream
from app.sandboxes import LEASE
from app.transactions import EVENT_BYTES, Happening, Transaction

BATCH_EVENTS = 500
STREAM_BYTES = 1 << 30
NUL = b"\\u0000"
UNSTORABLE = "\ufffd"
SMALLEST, LARGEST = -(1 << 63), (1 << 64) - 1  # of the whole numbers that are hashed as they are
_ODD = re.compile("[\0\ud800-\udfff]")
WORKERS_OWN = frozenset({EventSource.AGENT, EventSource.WORKER})
SERVERS_OWN = frozenset(
    {
        SandboxEventType.SANDBOX_STATUS,
        SandboxEventType.COMPLETED,
        SandboxEventType.BUDGET_WARNING,
        SandboxEventType.INTERVENTION,
    }
)
STARTING = (SandboxStatus.PROVISIONING, SandboxStatus.STARTING)
GOING = (SandboxStatus.RUNNING, SandboxStatus.WAITING, SandboxStatus.STOPPING)

_SANDBOXES = Base.metadata.tables[Sandbox.__tablename__]
_STREAMS = Base.metadata.tables[Stream.__tablename__]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    accepted_through: int
    desired: DesiredState
    spoken_to: bool  # messages wait for its agent
    errors: Sequence[DomainError] = ()


class Batch(NamedTuple):
    """What one report holds, as it may be stored."""

    events: Sequence[Happening]
    size_bytes: int


def read(reported: Sequence[Mapping[str, Any]]) -> Batch:
    """Nothing is refused here but a batch of too many events."""
    if len(reported) > BATCH_EVENTS:
        raise InvalidInput(f"A batch has {BATCH_EVENTS} events at most.", path=["events"])
    events, size = list[Happening](), 0
    for given in reported:
        happening, payload_bytes = _happening(given)
        events.append(happening)
        size += payload_bytes + EVENT_BYTES
    return Batch(events, size)


async def report(
    tx: Transaction,
    sandbox_id: UUID,
    batch: Batch,
    *,
    heartbeat: bool,
    mask: Mask,
    most_bytes: int = STREAM_BYTES,
) -> Reported:
    """Take what is new and consecutive. The same again is harmless; other content under a known number is refused,
    and a hole is answered with what was taken so far.

    Of a sandbox that has `most_bytes` of events already, what is new is taken and left out.
    """
    sandbox = await _hear(tx, sandbox_id, beats=heartbeat, works=bool(batch.events))
    known = await _hashes(tx.session, sandbox_id, sandbox.accepted_through, batch)
    new, errors = _new(batch, sandbox.accepted_through, known)
    through = sandbox.accepted_through + len(new)
    if new and sandbox.size_bytes >= most_bytes:
        errors.append(_full(most_bytes))
        await _leave_out(tx, sandbox_id, through)
    elif new:
        size = await _store(tx, sandbox, new, mask)
        if sandbox.size_bytes + size >= most_bytes:
            tx.emit(sandbox_id, SandboxEventType.LOG, {"text": _full(most_bytes).message, "level": "warning"})
    if new:
        await _wait_or_go_on(tx, sandbox, waits=new[-1].type is SandboxEventType.WAITING)
    return Reported(accepted_through=through, desired=sandbox.desired, spoken_to=sandbox.spoken_to, errors=errors)


async def _hear(tx: Transaction, sandbox_id: UUID, *, beats: bool, works: bool) -> Any:
    """Its worker lives, and no other report of it is taken until this one is. The first one lets the attempt begin."""
    hearing, given = _hearing(beats=beats, works=works), {"sandbox_id": sandbox_id}
    heard = (await tx.session.execute(hearing, given)).one_or_none()
    if heard is None:
        status = await tx.session.scalar(select(Sandbox.status).where(Sandbox.id == sandbox_id))
        if status in STARTING:
            await attempts.begin(tx, sandbox_id)
        if status in (*STARTING, *GOING):  # another first report may have let it begin in this moment
            heard = (await tx.session.execute(hearing, given)).one_or_none()
    if heard is None:
        raise Unauthenticated("This attempt has ended.")
    tx.ends[sandbox_id] = streams.End(heard.last_seq, heard.digest)
    return heard


@functools.cache
def _hearing(*, beats: bool, works: bool) -> ReturningUpdate[Any]:
    """The lease goes on. Every report of every worker runs this: it is put together once."""
    columns, now = _SANDBOXES.c, clock.now()
    values: dict[str, Any] = {"lease_until": now + LEASE}
    if works:
        values["last_event_at"] = now
    if beats:
        gap = func.extract("epoch", now - func.coalesce(columns.last_heartbeat_at, now)) * 1000
        values |= {
            "last_heartbeat_at": now,
            "first_heartbeat_at": func.coalesce(columns.first_heartbeat_at, now),
            "heartbeats": columns.heartbeats + 1,
            "longest_gap_ms": func.greatest(columns.longest_gap_ms, gap),
        }
    goes_on = or_(*(columns.status == status for status in GOING))
    return (
        update(_SANDBOXES)
        .where(columns.id == bindparam("sandbox_id"), _STREAMS.c.id == columns.id, goes_on)
        .values(values)
        .returning(
            *(columns[name] for name in ("id", "status", "desired", "accepted_through", "begun_secrets")),
            *(_STREAMS.c[name] for name in ("last_seq", "digest", "size_bytes")),
            messages.wait_for(columns.id).label("spoken_to"),
        )
    )


async def _hashes(session: AsyncSession, sandbox_id: UUID, through: int, batch: Batch) -> dict[int, bytes]:
    """What was sent before under the numbers that come again."""
    again = [number for number in map(_number, batch.events) if number <= through]
    if not again:
        return {}
    found = await session.execute(
        select(Event.producer_seq, Event.hash).where(Event.stream_id == sandbox_id, Event.producer_seq.in_(again))
    )
    return {number: hashed for number, hashed in found if number is not None and hashed is not None}


def _new(batch: Batch, through: int, known: dict[int, bytes]) -> tuple[list[Happening], list[DomainError]]:
    """Those that follow what was taken before, and what is to be said about the others."""
    new, errors = list[Happening](), list[DomainError]()
    for place, happening in enumerate(batch.events):
        number, hashed = _number(happening), happening.hash or b""
        if 1 <= number <= through:
            if known.get(number, hashed) != hashed:
                errors.append(_other_content(number, place))
            continue
        refusal = _refusal(happening, place)
        if number != through + 1 or refusal:
            errors.append(refusal or _hole(number, through, place))
            break
        new.append(happening)
        through, known[number] = number, hashed
    return new, errors


async def _store(tx: Transaction, sandbox: Any, new: Sequence[Happening], mask: Mask) -> int:
    """Returns how much it was."""
    told = [(_lane(happening), happening.payload) for happening in new]
    payloads, begun = mask.series(told, sandbox.begun_secrets or ())
    tx.begun_secrets[sandbox.id] = begun
    size = 0
    for happening, payload in zip(new, payloads, strict=True):
        kept = await long_texts.keep(tx.session, sandbox.id, happening.type, payload)
        tx.append(sandbox.id, [happening if kept is happening.payload else replace(happening, payload=kept)])
        size += len(orjson.dumps(kept)) + EVENT_BYTES
    return size


async def _leave_out(tx: Transaction, sandbox_id: UUID, through: int) -> None:
    await tx.session.execute(
        update(Sandbox)
        .where(Sandbox.id == sandbox_id)
        .values(accepted_through=through)
        .execution_options(synchronize_session=False)
    )


async def _wait_or_go_on(tx: Transaction, sandbox: Any, *, waits: bool) -> None:
    if waits and sandbox.status is SandboxStatus.RUNNING:
        await sandboxes.move(tx, sandbox.id, SandboxStatus.WAITING)
    elif not waits and sandbox.status is SandboxStatus.WAITING:
        await sandboxes.move(tx, sandbox.id, SandboxStatus.RUNNING)


def _lane(happening: Happening) -> Lane:
    """What a text continues: the last one in the same place of such an event, by the same tool."""
    return happening.type.value, str(happening.payload.get("tool", ""))


def _happening(given: Mapping[str, Any]) -> tuple[Happening, int]:
    """The event, and how many bytes its payload has."""
    source, turn = given.get("source"), given.get("turn")
    payload, text = _storable_text(given["payload"])
    told = [given["type"], source, turn, given["occurred_at"], orjson.Fragment(text)]
    happening = Happening(
        type=given["type"],
        source=source or EventSource.AGENT,
        turn=turn,
        occurred_at=given["occurred_at"],
        producer_seq=given["producer_seq"],
        hash=hashlib.sha256(orjson.dumps(told)).digest(),
        payload=payload if isinstance(payload, dict) else {"value": payload},
    )
    return happening, len(text)


def _storable_text(payload: Any) -> tuple[Any, bytes]:
    """What of it can be stored, and that as text. Hardly ever it is another one, and only then it is walked through."""
    try:
        text = orjson.dumps(payload, option=orjson.OPT_SORT_KEYS)
        if NUL not in text:
            return payload, text
    except TypeError:  # half of a surrogate pair, or a number beyond 64 bits
        pass
    payload = storable(payload)
    return payload, orjson.dumps(payload, option=orjson.OPT_SORT_KEYS)


def storable(value: Any) -> Any:
    """The same, but for NUL characters, halves of surrogate pairs and endless numbers, which rows and hashes cannot
    hold.
    """
    if isinstance(value, str):
        return storable_text(value)
    if isinstance(value, dict):
        return {storable(name): storable(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [storable(inner) for inner in value]
    if isinstance(value, int) and not SMALLEST <= value <= LARGEST:
        return _rounded(value)
    return value


def storable_text(text: str) -> str:
    return _ODD.sub(UNSTORABLE, text)


def _rounded(number: int) -> float | str:
    """As JSON is read elsewhere too; what is larger than any number there is told in digits."""
    try:
        return float(number)
    except OverflowError:
        return str(number)


def _number(happening: Happening) -> int:
    assert happening.producer_seq is not None
    return happening.producer_seq


def _refusal(happening: Happening, place: int) -> InvalidInput | None:
    path = ["events", str(place)]
    if happening.type in SERVERS_OWN:
        return InvalidInput(f"{happening.type.name} is written by the server alone.", path=[*path, "type"])
    if happening.source not in WORKERS_OWN:
        return InvalidInput("A worker reports what its agent and itself did, nothing else.", path=[*path, "source"])
    size = long_texts.part(happening.type, happening.payload).size_bytes
    if size > long_texts.EVENT_BYTES:
        most = f"{long_texts.EVENT_BYTES >> 10} KiB"
        why = f"A payload has {most} at most, and this one {size >> 10}; what is long in it goes ahead as blobs."
        return InvalidInput(why, path=[*path, "payload"])
    return None


def _full(most_bytes: int) -> LimitReached:
    most = f"{most_bytes >> 20:,} MiB" if most_bytes >> 20 else f"{most_bytes:,} bytes"
    return LimitReached(f"{most} of events are kept of one sandbox; what it reports now is left out.", path=["events"])


def _hole(number: int, through: int, place: int) -> InvalidInput:
    return InvalidInput(f"{through + 1} is expected, not {number}.", path=["events", str(place), "producerSeq"])


def _other_content(number: int, place: int) -> InvalidInput:
    return InvalidInput(f"{number} was reported before with other content.", path=["events", str(place), "producerSeq"])
