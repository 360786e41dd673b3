"""How long idempotency keys are remembered, and what counts as the same input."""

from datetime import UTC, datetime

import pytest
from sqlalchemy import text

from app import idempotency
from app.enums import Priority
from tests import world as w


async def forget(world, *, limit=1_000, later="0"):
    async with world.server.db.writing() as session:
        await session.execute(text(f"SET LOCAL omoi.clock_shift = '{later}'"))
        return await idempotency.forget_old(session, limit=limit)


async def test_keys_are_forgotten_after_a_day(world, ada, apollo):
    """A minute before they still answer; a minute after, the same request makes a new ticket."""
    first = await w.ticket(ada, apollo, idempotencyKey="moon")

    assert await forget(world, later="23 hours 59 minutes") == 0
    assert await w.ticket(ada, apollo, idempotencyKey="moon") == first
    assert await forget(world, later="24 hours 1 minute") == 1
    assert (await w.ticket(ada, apollo, idempotencyKey="moon"))["number"] == first["number"] + 1


async def test_no_more_are_forgotten_at_once_than_asked_for(world, ada, apollo):
    """A table full of old keys goes in bites."""
    for key in range(5):
        await w.ticket(ada, apollo, idempotencyKey=str(key))

    assert [await forget(world, limit=2, later="2 days") for _ in range(4)] == [2, 2, 1, 0]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        ({"a": 1}, {"a": "1"}, False),
        ({"a": None}, {}, False),
        ({"a": [1, 2]}, {"a": [2, 1]}, False),
        ({"a": Priority.HIGH}, {"a": Priority.LOW}, False),
        ({"a": datetime(2026, 1, 1, tzinfo=UTC)}, {"a": datetime(2026, 1, 2, tzinfo=UTC)}, False),
    ],
)
def test_inputs_are_compared_by_value(one, other, same):
    """The order of an input's fields says nothing; everything else does."""
    assert (idempotency.fingerprint(one) == idempotency.fingerprint(other)) is same
