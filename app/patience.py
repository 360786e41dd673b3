"""When a sandbox is asked to stop though nobody wishes it: its time is over, or it fell silent."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy import ColumnElement, func, literal, select
from sqlalchemy.ext.asyncio import AsyncSession

from app import clock, sandboxes
from app.enums import DesiredState, FailureCode
from app.models import Sandbox
from app.sandboxes import LEASE, LIVE, PROVISIONING, RUNNING, STARTING, WAITING
from app.transactions import Transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    code: FailureCode
    sentence: str
    holds: Sequence[ColumnElement[bool]]


def reasons(silence: timedelta, *, listening: datetime) -> Sequence[Reason]:
    """Silence counts from `listening` at the earliest: since then somebody could hear workers, without a break."""
    over = clock.now() - silence
    listened = literal(listening, Sandbox.created_at.type)
    happened = func.greatest(Sandbox.launch_at, Sandbox.last_event_at, listened)
    heard = func.greatest(happened, Sandbox.last_heartbeat_at)
    return [
        Reason(
            code=FailureCode.STALLED,
            sentence=f"Nothing has happened in it for {silence}.",
            holds=[
                Sandbox.status.in_({STARTING, RUNNING}),
                happened < over,
                Sandbox.last_heartbeat_at > clock.now() - LEASE,
            ],
        ),
        Reason(  # its provider may vouch for a process that will never say anything again
            code=FailureCode.STALLED,
            sentence=f"Its worker was not heard of for {silence}.",
            holds=[Sandbox.status.in_({STARTING, RUNNING, WAITING}), heard < over],
        ),
        Reason(
            code=FailureCode.TIMED_OUT,
            sentence="The time that a try gets is over.",
            holds=[Sandbox.status.in_(LIVE - {PROVISIONING}), Sandbox.deadline_at < clock.now()],
        ),
    ]


async def found(session: AsyncSession, reason: Reason, *, limit: int) -> Sequence[UUID]:
    """Sandboxes for which it holds, and that were not asked to stop before."""
    those = await session.scalars(
        select(Sandbox.id).where(Sandbox.desired == DesiredState.RUN, *reason.holds).order_by(Sandbox.id).limit(limit)
    )
    return those.all()


async def stop(tx: Transaction, sandbox_id: UUID, reason: Reason) -> Sandbox | None:
    """Ask it to stop if the reason still holds now; None when it was heard of, or has ended, meanwhile."""
    still = await tx.session.scalars(
        select(Sandbox)
        .where(Sandbox.id == sandbox_id, Sandbox.desired == DesiredState.RUN, *reason.holds)
        .with_for_update(key_share=True)
    )
    sandbox = still.one_or_none()
    if sandbox is not None:
        await sandboxes.stop(tx, sandbox_id, code=reason.code, reason=reason.sentence)
    return sandbox
