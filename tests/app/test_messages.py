"""Messages by themselves: what the server says, what expires, and what an inbox does without the database."""

import asyncio
from contextlib import aclosing, asynccontextmanager
from datetime import timedelta

import pytest
from sqlalchemy import select, text, update

from app import clock, ids, messages, transactions
from app.auth import SYSTEM, Principal
from app.db import DatabaseUnavailable
from app.enums import MessageKind, MessageStatus, PrincipalKind
from app.models import Message
from tests.schema import boxes


@pytest.fixture
async def box(ada, apollo):
    return await boxes.running(ada, apollo)


@pytest.fixture
def change(world):
    return lambda: transactions.begin(world.server.db, world.server.bus, SYSTEM, request_id="test")


async def stored(world):
    async with world.server.db.reading() as session:
        return (await session.scalars(select(Message).order_by(Message.id))).all()


async def test_the_server_speaks_as_itself(box, change):
    """Its worker hears it like any other message."""
    async with change() as tx:
        await messages.tell(tx, box.key, "Four fifths of the budget are used up.")

    [heard] = (await box.report())["pendingMessages"]
    assert (heard["kind"], heard["author"], heard["authorKind"]) == ("SYSTEM", "omoi", "SYSTEM")


async def test_what_waits_in_vain_expires(world, ada, apollo, box, change):
    """Past its time, or in a sandbox that has ended; so many at once, and nothing else."""
    ended = await boxes.running(ada, apollo)
    async with change() as tx:
        late, kept = [await messages.tell(tx, box.key, body) for body in ("late", "kept")]
        unheard, shown = [await messages.tell(tx, ended.key, body) for body in ("unheard", "shown")]
    await ended.do("acknowledgeMessages", "desiredState", messageIds=[ids.encode("message", shown.id)])
    await ended.finish()
    async with world.server.db.writing() as session:
        await session.execute(
            update(Message).where(Message.id == late.id).values(expires_at=clock.now() - timedelta(seconds=1))
        )

    counts = []
    for _ in range(3):
        async with world.server.db.writing() as session:
            counts.append(await messages.expire(session, limit=1))

    assert counts == [1, 1, 0]
    statuses = {message.id: message.status for message in await stored(world)}
    assert [statuses[one.id] for one in (late, kept, unheard, shown)] == [
        MessageStatus.EXPIRED,
        MessageStatus.QUEUED,
        MessageStatus.EXPIRED,
        MessageStatus.DELIVERED,
    ]


async def test_what_somebody_else_has_in_hand_is_not_waited_for(world, box, change):
    """Two that let messages expire at once do not stand in each other's way; the rest comes with the next turn."""
    async with change() as tx:
        for body in ("one", "two"):
            await messages.tell(tx, box.key, body)
        await tx.session.execute(update(Message).values(expires_at=clock.now()))
    async with world.server.db.writing() as first, asyncio.timeout(5):
        assert await messages.expire(first, limit=1) == 1
        async with world.server.db.writing() as second:
            assert await messages.expire(second, limit=10) == 1


async def test_a_message_expires_by_the_clock_of_the_database(world, box, change):
    """Whatever time this process believes it is."""
    async with change() as tx:
        message = await messages.tell(tx, box.key, "soon over")
        await tx.session.execute(
            update(Message).where(Message.id == message.id).values(expires_at=clock.now() + timedelta(minutes=5))
        )
    counts = []
    for shift in ("0 minutes", "10 minutes"):
        async with world.server.db.writing() as session:
            await session.execute(text(f"SET LOCAL omoi.clock_shift = '{shift}'"))
            counts.append(await messages.expire(session, limit=10))

    assert counts == [0, 1]


async def test_every_status_has_its_moves():
    """And nothing leads away from what was delivered."""
    assert set(messages.MOVES) == set(MessageStatus)
    assert messages.MOVES[MessageStatus.DELIVERED] == frozenset()
    assert all(MessageStatus.DELIVERED in after for before, after in messages.MOVES.items() if after)
    assert set(MessageKind) - messages.OF_PEOPLE == {
        MessageKind.GUARDIAN_NUDGE,
        MessageKind.SYSTEM,
        MessageKind.COLLABORATION,
    }


async def test_an_inbox_outlives_an_outage(world, box, change):
    """What was said meanwhile comes once the database is back."""

    class Failing:
        """The database, whose second session cannot be had."""

        background = world.server.db.background
        turns = 0

        @asynccontextmanager
        async def writing(self):
            self.turns += 1
            if self.turns == 2:
                raise DatabaseUnavailable
            async with world.server.db.writing() as session:
                yield session

    db = Failing()
    worker = Principal(kind=PrincipalKind.SANDBOX, id=box.key, name="worker")
    looks = messages.inbox(db, world.server.bus, worker, request_id="test", poll_seconds=0.01)
    async with aclosing(looks):
        assert (await anext(looks)).messages == []
        async with change() as tx:
            await messages.tell(tx, box.key, "said in the dark")
        assert [message.body for message in (await anext(looks)).messages] == ["said in the dark"]
    assert db.turns > 2


async def test_an_inbox_ends_with_its_sandbox(world, box):
    """Whoever reads it is not kept waiting."""
    worker = Principal(kind=PrincipalKind.SANDBOX, id=box.key, name="worker")
    looks = messages.inbox(world.server.db, world.server.bus, worker, request_id="test", poll_seconds=60)
    async with aclosing(looks):
        await anext(looks)
        await box.finish()
        async with asyncio.timeout(10):
            assert [look async for look in looks] == []
