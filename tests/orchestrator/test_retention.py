"""Retention deletes what is kept for a time only, and nothing else."""

from datetime import UTC, datetime, timedelta

from sqlalchemy import text

from app import auth, tokens, transactions
from app.idempotency import KEPT
from orchestrator import retention
from tests.app.browser import link_for, signed_in, sql
from tests.world import ticket


async def names(world, statement):
    async with world.server.db.reading() as session:
        return sorted(await session.scalars(text(statement)))


async def test_old_keys_go(world, ada, apollo):
    """An idempotency key is forgotten when its time is over; a younger one still answers for its object."""
    old = await ticket(ada, apollo, idempotencyKey="old")
    young = await ticket(ada, apollo, idempotencyKey="young")
    await sql(
        world,
        "UPDATE idempotency_keys SET created_at = omoi_now() - cast(:age AS interval) WHERE key = 'old'",
        age=KEPT + timedelta(seconds=1),
    )
    await sql(
        world,
        "UPDATE idempotency_keys SET created_at = omoi_now() - cast(:age AS interval) WHERE key = 'young'",
        age=KEPT - timedelta(minutes=1),
    )
    assert await retention.run_once(world.server.db) == 1
    assert await names(world, "SELECT key FROM idempotency_keys") == ["young"]
    assert (await ticket(ada, apollo, idempotencyKey="young"))["id"] == young["id"]
    assert (await ticket(ada, apollo, idempotencyKey="old"))["id"] != old["id"]


async def test_ended_sessions_and_links_go(world, ada):
    """What browsers used goes a week after its end; access tokens stay on record, ended or not."""
    for _ in range(2):
        await signed_in(world, ada.user)
    await link_for(world, ada.user)
    async with transactions.begin(world.server.db, None, auth.SYSTEM, request_id="test") as tx:
        await tokens.create(tx, ada.user, name="ended", expires_at=datetime.now(UTC) + timedelta(days=1))
    ended = "UPDATE access_tokens SET expires_at = omoi_now() - cast(:age AS interval) WHERE "
    await sql(world, ended + "name = 'ended'", age=timedelta(days=400))
    await sql(world, ended + "kind <> 'access'", age=tokens.ENDED_KEPT - timedelta(minutes=1))
    before = await names(world, "SELECT kind FROM access_tokens")
    assert await retention.run_once(world.server.db) == 0
    assert await names(world, "SELECT kind FROM access_tokens") == before
    one_session = "id = (SELECT min(id::text)::uuid FROM access_tokens WHERE kind = 'session')"
    await sql(world, ended + one_session, age=tokens.ENDED_KEPT + timedelta(minutes=1))
    assert await retention.run_once(world.server.db) == 1
    await sql(world, ended + "kind <> 'access'", age=tokens.ENDED_KEPT + timedelta(minutes=1))
    assert await retention.run_once(world.server.db) == len(before) - 3
    assert await names(world, "SELECT name FROM access_tokens") == ["ended", "test"]


async def test_many_rows_go_in_turns(world, monkeypatch):
    """However much is old, no transaction deletes more than its share, and one run takes it all."""
    monkeypatch.setattr(retention, "ROWS_AT_ONCE", 10)
    await sql(
        world,
        "INSERT INTO idempotency_keys "
        "SELECT gen_random_uuid(), 'o', 'k', '', gen_random_uuid(), omoi_now() - interval '1 year' "
        "FROM generate_series(1, 35)",
    )
    assert await retention.run_once(world.server.db) == 35
