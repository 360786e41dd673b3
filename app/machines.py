"""What the loops ask of sandboxes for their machines' sake: which to launch, to vouch for, to end and to give up."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Protocol
from uuid import UUID

from sqlalchemy import ColumnElement, Select, and_, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from app import clock
from app.enums import DesiredState
from app.models import Sandbox
from app.sandboxes import LEASE, LIVE, PROVISIONING, STOPPING

LAUNCH = timedelta(seconds=10)  # how long a launch is in the hand of a process that says no more of it
ABANDONED = timedelta(minutes=15)  # a place of which nobody has said a word for so long does not come back soon


class Here(Protocol):
    """Where a server sees to sandboxes: with one provider, and in one of its places or, for None, in all of them."""

    @property
    def provider(self) -> str: ...
    @property
    def place(self) -> str | None: ...


async def to_launch(session: AsyncSession, here: Here, *, life: timedelta, limit: int) -> Sequence[Sandbox]:
    """Take in hand those that want a machine now and that no other process is launching. Their time begins here."""
    wanting = (
        select(Sandbox.id)
        .where(
            *_those(here),
            Sandbox.status == PROVISIONING,
            Sandbox.desired == DesiredState.RUN,
            Sandbox.launch_at <= clock.now(),
            or_(Sandbox.launch_until.is_(None), Sandbox.launch_until < clock.now()),
        )
        .order_by(Sandbox.launch_at, Sandbox.id)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    taken = await session.scalars(
        update(Sandbox)
        .where(Sandbox.id.in_(wanting))
        .values(
            place=here.place,
            launch_at=clock.now(),
            launch_until=clock.now() + LAUNCH,
            lease_until=clock.now() + LEASE,
            deadline_at=clock.now() + life,
        )
        .returning(Sandbox)
        .execution_options(populate_existing=True)
    )
    return taken.all()


async def keep_in_hand(session: AsyncSession, sandbox_ids: Sequence[UUID]) -> None:
    """Their launches take their time, and go on."""
    theirs = _free(Sandbox.id.in_(sandbox_ids), Sandbox.launch_until.is_not(None))
    await session.execute(
        update(Sandbox)
        .where(Sandbox.id.in_(theirs))
        .values(launch_until=clock.now() + LAUNCH, lease_until=clock.now() + LEASE)
    )


async def launch_later(session: AsyncSession, sandbox_id: UUID, *, seconds: float) -> None:
    """It waits in PROVISIONING, in nobody's hand, and is launched again by the same name, here or elsewhere."""
    later = clock.now() + timedelta(seconds=seconds)
    await session.execute(
        update(Sandbox)
        .where(Sandbox.id == sandbox_id, Sandbox.status == PROVISIONING)
        .values(place=None, launch_at=later, launch_until=None)
    )


async def alive(session: AsyncSession, names: Sequence[str]) -> None:
    """Their provider vouches for their machines: a worker that is cut off keeps its lease."""
    theirs = _free(Sandbox.name.in_(names), Sandbox.status.in_(LIVE), Sandbox.lease_until < clock.now() + LEASE / 2)
    await session.execute(update(Sandbox).where(Sandbox.id.in_(theirs)).values(lease_until=clock.now() + LEASE))


async def with_machines(session: AsyncSession, here: Here) -> Sequence[Sandbox]:
    """All that have, or may have, a machine."""
    found = await session.scalars(select(Sandbox).where(*_those(here), Sandbox.gone_at.is_(None)).order_by(Sandbox.id))
    return found.all()


async def expired(session: AsyncSession, here: Here, *, limit: int) -> Sequence[Sandbox]:
    """Live ones for which nobody has vouched in time. What still waits for its launch is nobody's to vouch for."""
    waits = and_(Sandbox.status == PROVISIONING, Sandbox.desired == DesiredState.RUN)
    found = await session.scalars(
        select(Sandbox)
        .where(*_those(here), Sandbox.status.in_(LIVE), ~waits, Sandbox.lease_until < clock.now())
        .order_by(Sandbox.lease_until)
        .limit(limit)
    )
    return found.all()


async def abandoned(session: AsyncSession, here: Here, *, limit: int) -> Sequence[Sandbox]:
    """Those of other places, and what may be left of them there, of which nobody has said a word for very long."""
    if here.place is None:
        return []
    found = await session.scalars(
        select(Sandbox)
        .where(
            Sandbox.provider == here.provider,
            Sandbox.place != here.place,
            Sandbox.gone_at.is_(None),
            func.greatest(Sandbox.lease_until, Sandbox.finished_at) < clock.now() - ABANDONED,
        )
        .order_by(Sandbox.id)
        .limit(limit)
    )
    return found.all()


async def is_expired(session: AsyncSession, sandbox_id: UUID) -> bool:
    over = select(Sandbox.id).where(Sandbox.id == sandbox_id, Sandbox.lease_until < clock.now())
    return await session.scalar(over) is not None


async def to_force(session: AsyncSession, here: Here) -> frozenset[UUID]:
    """Asked to stop, and out of time."""
    found = await session.scalars(
        select(Sandbox.id).where(*_those(here), Sandbox.status == STOPPING, Sandbox.force_at < clock.now())
    )
    return frozenset(found)


async def in_hand(session: AsyncSession, here: Here) -> frozenset[UUID]:
    """Some process is getting a machine for them in this moment."""
    found = await session.scalars(
        select(Sandbox.id).where(*_those(here), Sandbox.gone_at.is_(None), Sandbox.launch_until > clock.now())
    )
    return frozenset(found)


async def owning(session: AsyncSession, names: Sequence[str]) -> frozenset[str]:
    """Those of these machines that a sandbox still answers for."""
    found = await session.scalars(select(Sandbox.name).where(Sandbox.name.in_(names), Sandbox.gone_at.is_(None)))
    return frozenset(found)


async def with_machines_of(session: AsyncSession, task_ids: Sequence[UUID]) -> Mapping[UUID, Sandbox]:
    """For each task the newest sandbox that has, or may have, a machine."""
    found = await session.scalars(
        select(Sandbox).where(Sandbox.task_id.in_(task_ids), Sandbox.gone_at.is_(None)).order_by(Sandbox.attempt)
    )
    return {sandbox.task_id: sandbox for sandbox in found if sandbox.task_id is not None}


async def count_machines(session: AsyncSession, here: Here) -> int:
    there = select(func.count()).select_from(Sandbox).where(*_those(here), Sandbox.gone_at.is_(None))
    return await session.scalar(there) or 0


def _free(*conditions: ColumnElement[bool]) -> Select[UUID]:
    """Those of them that nobody is changing in this moment, locked in one order: so no two wait for each other."""
    return select(Sandbox.id).where(*conditions).order_by(Sandbox.id).with_for_update(key_share=True, skip_locked=True)


def _those(here: Here) -> Sequence[ColumnElement[bool]]:
    """A provider's sandboxes in one of its places, and those that are nowhere yet; None: wherever they are."""
    if here.place is None:
        return [Sandbox.provider == here.provider]
    return [Sandbox.provider == here.provider, or_(Sandbox.place.is_(None), Sandbox.place == here.place)]
