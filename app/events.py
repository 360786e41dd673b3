"""What a worker reports: numbered by itself, taken once, in order, without a hole."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import orjson
from sqlalchemy import func, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from app import attempts, clock, sandboxes
from app.enums import DesiredState, EventSource, SandboxEventType, SandboxStatus
from app.errors import DomainError, InvalidInput, Unauthenticated
from app.masking import Lane, Mask
from app.models import Event, Sandbox
from app.sandboxes import LEASE, LIVE
from app.transactions import Happening, Transaction

BATCH_EVENTS = 500
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    accepted_through: int
    desired: DesiredState
    errors: Sequence[DomainError] = ()


async def report(
    tx: Transaction, sandbox_id: UUID, reported: Sequence[Mapping[str, Any]], *, heartbeat: bool, mask: Mask
) -> Reported:
    """Take what is new and consecutive. The same again is harmless; other content under a known number is refused,
    and a hole is answered with what was taken so far.
    """
    if len(reported) > BATCH_EVENTS:
        raise InvalidInput(f"A batch has {BATCH_EVENTS} events at most.", path=["events"])
    sandbox = await _heard_of(tx, sandbox_id, heartbeat=heartbeat, worked=bool(reported))
    known = await _hashes(tx.session, sandbox, reported)
    through, errors, taken = sandbox.accepted_through, list[DomainError](), list[Happening]()
    for place, given in enumerate(reported):
        number, hashed = given["producer_seq"], _hash(given)
        refusal = _refusal(given, place)
        if 1 <= number <= through:
            if known.get(number, hashed) != hashed:
                errors.append(_other_content(number, place))
            continue
        if number != through + 1 or refusal:
            errors.append(refusal or _hole(number, through, place))
            break
        taken.append(_happening(given, hashed))
        through, known[number] = number, hashed
    if taken:
        await _store(tx, sandbox, taken, through, mask)
    return Reported(accepted_through=through, desired=sandbox.desired, errors=errors)


async def _heard_of(tx: Transaction, sandbox_id: UUID, *, heartbeat: bool, worked: bool) -> Sandbox:
    """Its worker lives: the lease goes on. The first sign of life lets the attempt begin."""
    status = await tx.session.scalar(select(Sandbox.status).where(Sandbox.id == sandbox_id))
    if status in (SandboxStatus.PROVISIONING, SandboxStatus.STARTING):
        await attempts.begin(tx, sandbox_id)
    now = clock.now()
    gap = func.extract("epoch", now - func.coalesce(Sandbox.last_heartbeat_at, now)) * 1000
    beat = {
        "last_heartbeat_at": now,
        "first_heartbeat_at": func.coalesce(Sandbox.first_heartbeat_at, now),
        "heartbeats": Sandbox.heartbeats + 1,
        "longest_gap_ms": func.greatest(Sandbox.longest_gap_ms, gap),
    }
    heard = await tx.session.scalars(
        update(Sandbox)
        .where(Sandbox.id == sandbox_id, Sandbox.status.in_(LIVE))
        .values(
            lease_until=now + LEASE,
            last_event_at=now if worked else Sandbox.last_event_at,
            **(beat if heartbeat else {}),
        )
        .returning(Sandbox)
        .execution_options(populate_existing=True)
    )
    sandbox = heard.one_or_none()
    if sandbox is None:
        raise Unauthenticated("This attempt has ended.")
    return sandbox


async def _hashes(session: AsyncSession, sandbox: Sandbox, reported: Sequence[Mapping[str, Any]]) -> dict[int, bytes]:
    """What was sent before under the numbers that come again."""
    again = [given["producer_seq"] for given in reported if given["producer_seq"] <= sandbox.accepted_through]
    if not again:
        return {}
    found = await session.execute(
        select(Event.producer_seq, Event.hash).where(Event.stream_id == sandbox.id, Event.producer_seq.in_(again))
    )
    return {number: hashed for number, hashed in found if number is not None and hashed is not None}


async def _store(tx: Transaction, sandbox: Sandbox, taken: Sequence[Happening], through: int, mask: Mask) -> None:
    told = [(_lane(happening), happening.payload) for happening in taken]
    payloads, begun = mask.series(told, sandbox.begun_secrets or ())
    tx.append(sandbox.id, [replace(one, payload=payload) for one, payload in zip(taken, payloads, strict=True)])
    await tx.session.execute(
        update(Sandbox)
        .where(Sandbox.id == sandbox.id)
        .values(accepted_through=through, begun_secrets=begun or None)
        .execution_options(synchronize_session=False)
    )
    waits = taken[-1].type is SandboxEventType.WAITING
    if waits and sandbox.status is SandboxStatus.RUNNING:
        await sandboxes.move(tx, sandbox.id, SandboxStatus.WAITING)
    elif not waits and sandbox.status is SandboxStatus.WAITING:
        await sandboxes.move(tx, sandbox.id, SandboxStatus.RUNNING)


def _lane(happening: Happening) -> Lane:
    """What a text continues: the last one in the same place of such an event, by the same tool."""
    return happening.type.value, str(happening.payload.get("tool", ""))


def _happening(given: Mapping[str, Any], hashed: bytes) -> Happening:
    payload = given["payload"]
    return Happening(
        type=given["type"],
        source=given.get("source") or EventSource.AGENT,
        turn=given.get("turn"),
        occurred_at=given["occurred_at"],
        producer_seq=given["producer_seq"],
        hash=hashed,
        payload=storable(payload if isinstance(payload, dict) else {"value": payload}),
    )


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


def _hash(given: Mapping[str, Any]) -> bytes:
    told = [given["type"], given.get("source"), given.get("turn"), given["occurred_at"], storable(given["payload"])]
    return hashlib.sha256(orjson.dumps(told, option=orjson.OPT_SORT_KEYS)).digest()


def _refusal(given: Mapping[str, Any], place: int) -> InvalidInput | None:
    path = ["events", str(place)]
    if given["type"] in SERVERS_OWN:
        return InvalidInput(f"{given['type'].name} is written by the server alone.", path=[*path, "type"])
    if (given.get("source") or EventSource.AGENT) not in WORKERS_OWN:
        return InvalidInput("A worker reports what its agent and itself did, nothing else.", path=[*path, "source"])
    return None


def _hole(number: int, through: int, place: int) -> InvalidInput:
    return InvalidInput(f"{through + 1} is expected, not {number}.", path=["events", str(place), "producerSeq"])


def _other_content(number: int, place: int) -> InvalidInput:
    return InvalidInput(f"{number} was reported before with other content.", path=["events", str(place), "producerSeq"])
