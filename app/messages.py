"""What is said to a running agent. Only this module changes a message's status."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import structlog
from sqlalchemy import ColumnElement, Select, exists, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from app import clock, ids, paging, sandboxes, transactions
from app.auth import Principal
from app.bus import Bus
from app.db import Database, DatabaseUnavailable
from app.enums import DesiredState, MessageKind, MessageStatus, SandboxStatus
from app.errors import InvalidTransition, LimitReached, NotFound, SandboxNotRunning
from app.inputs import Checks
from app.models import Message, Sandbox
from app.transactions import Transaction

QUEUED, SENT, DELIVERED, EXPIRED, CANCELLED = (
    MessageStatus.QUEUED,
    MessageStatus.SENT,
    MessageStatus.DELIVERED,
    MessageStatus.EXPIRED,
    MessageStatus.CANCELLED,
)
MOVES: Mapping[MessageStatus, frozenset[MessageStatus]] = {
    QUEUED: frozenset({SENT, DELIVERED, EXPIRED, CANCELLED}),
    SENT: frozenset({DELIVERED, EXPIRED, CANCELLED}),
    EXPIRED: frozenset({DELIVERED}),  # its worker had it already: what the agent was shown, it was shown
    CANCELLED: frozenset({DELIVERED}),
    DELIVERED: frozenset(),
}
WAITING = frozenset({QUEUED, SENT})
OF_PEOPLE = frozenset({MessageKind.USER, MessageKind.INTERRUPT})
BODY_CHARS = 32_000
WAITING_AT_ONCE = 100  # for one sandbox
IDS_AT_ONCE = 200
OLDEST_FIRST = paging.Order(Message.id)

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Inbox:
    """What a worker should look at now."""

    messages: Sequence[Message]
    desired_state: DesiredState


async def inject(
    tx: Transaction,
    sandbox_id: UUID,
    *,
    body: str,
    kind: MessageKind = MessageKind.USER,
    expires_at: datetime | None = None,
) -> Message:
    """A person speaks to the agent. The author is whoever is signed in, whatever the body says."""
    now = await tx.session.scalar(select(clock.now()))
    assert now is not None
    with Checks() as checks:
        body = checks.block(body, "body", chars=BODY_CHARS)
        if not body.strip():
            checks.refuse("body cannot be empty.", ["body"])
        if kind not in OF_PEOPLE:
            checks.refuse(f"People say USER or INTERRUPT; {kind.name} is not theirs to say.", ["kind"])
        if expires_at is not None and expires_at <= now:
            checks.refuse("expiresAt must lie in the future.", ["expiresAt"])
    sandbox = await _listening(tx.session, sandbox_id)
    message = await _insert(tx, sandbox_id, kind, body, expires_at=expires_at)
    said = "interrupted" if kind is MessageKind.INTERRUPT else "spoke to"
    tx.record("message.injected", message.id, f"{said} the agent in {sandbox.name}", project_id=sandbox.project_id)
    return message


async def tell(tx: Transaction, sandbox_id: UUID, body: str) -> Message:
    """The server speaks to the agent by itself."""
    return await _insert(tx, sandbox_id, MessageKind.SYSTEM, body)


async def cancel(tx: Transaction, message_id: UUID) -> Message:
    """QUEUED or SENT → CANCELLED. What the worker holds already may still be shown; it is DELIVERED then."""
    moved = await _move(tx.session, CANCELLED, Message.id == message_id)
    if not moved:
        raise await _refused(tx.session, message_id)
    [cancelled] = moved
    [sandbox] = await sandboxes.by_ids(tx.session, [cancelled.sandbox_id])
    summary = f"took back a message to the agent in {sandbox.name}"
    tx.record("message.cancelled", message_id, summary, project_id=sandbox.project_id)
    return cancelled


async def pending(tx: Transaction, sandbox_id: UUID) -> Sequence[Message]:
    """What the worker was not told, or has not shown to its agent yet, the oldest first; SENT from now on."""
    waiting = await _waiting(tx.session, sandbox_id)
    if any(message.status is QUEUED for message in waiting):
        await _move(tx.session, SENT, Message.id.in_([message.id for message in waiting]))
    return waiting


def wait_for(sandbox_id: ColumnElement[UUID]) -> ColumnElement[bool]:
    """Whether `pending` has something to say."""
    return exists().where(*_unheard(sandbox_id))


async def acknowledge(tx: Transaction, sandbox_id: UUID, message_ids: Sequence[UUID], turn: int | None) -> None:
    """→ DELIVERED: the agent was shown them. Said twice it is harmless, and the first turn stays."""
    with Checks() as checks:
        checks.at_most(message_ids, IDS_AT_ONCE, "messageIds")
    mine = (Message.sandbox_id == sandbox_id, Message.id.in_(message_ids))
    await _move(tx.session, DELIVERED, *mine, delivered_in_turn=turn, delivered_at=clock.now())


async def expire(session: AsyncSession, *, limit: int) -> int:
    """QUEUED or SENT → EXPIRED, where their time is over or nobody is left to hear them."""
    hopeless = (
        select(Message.id)
        .join(Sandbox, Sandbox.id == Message.sandbox_id)
        .where(
            Message.status.in_(WAITING),
            or_(Message.expires_at <= clock.now(), Sandbox.status.in_(sandboxes.ENDED)),
        )
        .limit(limit)
        .with_for_update(of=Message, skip_locked=True)
    )
    return len(await _move(session, EXPIRED, Message.id.in_(hopeless)))


async def inbox(
    db: Database, bus: Bus, principal: Principal, *, request_id: str, poll_seconds: float
) -> AsyncGenerator[Inbox]:
    """For the worker: first what waits, then each message as it comes and the wish to stop, until its sandbox ended."""
    told: set[UUID] = set()
    desired: DesiredState | None = None
    with bus.listen(sandboxes.inbox(principal.id)) as bell:
        while True:
            try:
                async with db.background, transactions.begin(db, bus, principal, request_id=request_id) as tx:
                    sandbox = await _read(tx.session, principal.id)
                    waiting = await pending(tx, principal.id)
            except DatabaseUnavailable as error:  # it comes back, and so does the inbox
                log.info("inbox_read_failed", sandbox=str(principal.id), error=error.message)
                await bell.wait(poll_seconds)
                continue
            new = [message for message in waiting if message.id not in told]
            told = {message.id for message in waiting}
            if new or sandbox.desired is not desired:
                desired = sandbox.desired
                yield Inbox(messages=new, desired_state=desired)
            if sandbox.status in sandboxes.ENDED:
                return
            await bell.wait(poll_seconds)


async def by_ids(session: AsyncSession, message_ids: Sequence[UUID]) -> Sequence[Message]:
    found = await session.scalars(select(Message).where(Message.id.in_(message_ids)))
    return found.all()


def of(sandbox_id: ColumnElement[UUID]) -> Select[Message]:
    return select(Message).where(Message.sandbox_id == sandbox_id)


async def counts(session: AsyncSession, sandbox_ids: Sequence[UUID]) -> Mapping[UUID, int]:
    found = await session.execute(
        select(Message.sandbox_id, func.count()).where(Message.sandbox_id.in_(sandbox_ids)).group_by(Message.sandbox_id)
    )
    return dict(found.all())


async def _listening(session: AsyncSession, sandbox_id: UUID) -> Sandbox:
    """The sandbox, which does not end before this transaction does; with room in its inbox."""
    sandbox = await _read(session, sandbox_id, locked=True)
    if sandbox.status in sandboxes.ENDED or sandbox.status is SandboxStatus.STOPPING:
        raise SandboxNotRunning(f"The sandbox is {sandbox.status.name}: nobody there can hear.", path=["sandboxId"])
    waiting = len(await _waiting(session, sandbox_id))
    if waiting >= WAITING_AT_ONCE:
        raise LimitReached(f"{waiting} messages wait for this agent already; that is the most.", path=["sandboxId"])
    return sandbox


async def _read(session: AsyncSession, sandbox_id: UUID, *, locked: bool = False) -> Sandbox:
    query = select(Sandbox).where(Sandbox.id == sandbox_id).execution_options(populate_existing=True)
    sandbox = (await session.scalars(query.with_for_update(read=True) if locked else query)).one_or_none()
    if sandbox is None:
        raise NotFound(path=["sandboxId"])
    return sandbox


async def _insert(
    tx: Transaction, sandbox_id: UUID, kind: MessageKind, body: str, *, expires_at: datetime | None = None
) -> Message:
    author = tx.principal
    message = Message(
        id=ids.new(),
        sandbox_id=sandbox_id,
        kind=kind,
        body=body,
        author=author.name,
        author_kind=author.kind,
        author_id=author.id,
        expires_at=expires_at,
    )
    tx.session.add(message)
    await tx.session.flush()
    await tx.session.refresh(message)
    tx.ring(sandboxes.inbox(sandbox_id))
    return message


async def _waiting(session: AsyncSession, sandbox_id: UUID) -> Sequence[Message]:
    found = await session.scalars(select(Message).where(*_unheard(sandbox_id)).order_by(Message.id))
    return found.all()


def _unheard(sandbox_id: UUID | ColumnElement[UUID]) -> Sequence[ColumnElement[bool]]:
    columns = Message.__table__.c
    return (
        columns.sandbox_id == sandbox_id,
        or_(*(columns.status == status for status in WAITING)),
        or_(columns.expires_at.is_(None), columns.expires_at > clock.now()),
    )


async def _move(
    session: AsyncSession, status: MessageStatus, *which: ColumnElement[bool], **values: Any
) -> Sequence[Message]:
    """The one place where a status is written: guarded by MOVES."""
    sources = [before for before, after in MOVES.items() if status in after]
    moved = await session.scalars(
        update(Message)
        .where(*which, Message.status.in_(sources))
        .values(status=status, **values)
        .returning(Message)
        .execution_options(populate_existing=True)
    )
    return moved.all()


async def _refused(session: AsyncSession, message_id: UUID) -> InvalidTransition:
    [message] = await by_ids(session, [message_id])
    return InvalidTransition(
        f"The message is {message.status.name}; only one that waits can be taken back.",
        path=["messageId"],
        details={"allowed": sorted(after.name for after in MOVES[message.status])},
    )
