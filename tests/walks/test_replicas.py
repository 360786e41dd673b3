"""Several replicas on one Postgres and one Redis are one server to their users."""

import contextlib

import pytest

from app.settings import Settings
from tests.servers import until, valkey
from tests.world import Account, World, project, ticket

FEED = "subscription($id: ID!) { projectActivity(projectId: $id) { activities { seq verb } } }"
HEALTH = "{ health { status components { name status } } }"
NEVER = 60.0


@pytest.fixture
async def redis():
    async with valkey() as server:
        yield server


@contextlib.asynccontextmanager
async def replicas(database_url, folder, redis, *, poll_seconds):
    """Two servers, and the same account on each."""
    given = Settings(data=folder, orchestrator_enabled=False, redis_url=redis.url, stream_poll_seconds=poll_seconds)
    async with World(given, database_url).running() as one, World(given, database_url).running() as two:
        await until(lambda: one.server.bus.backend.connected and two.server.bus.backend.connected)
        ada = await one.account("ada")
        yield ada, Account(two, ada.user, ada.token)


async def read_until(events, seq):
    seen = []
    while not seen or seen[-1] < seq:
        seen += [activity["seq"] for activity in (await events.next())["activities"]]
    return seen


async def test_change_reaches_the_other_replica(database_url, tmp_path, redis):
    """What one replica changes, subscribers of the other see at once; nobody polls here."""
    async with replicas(database_url, tmp_path, redis, poll_seconds=NEVER) as (here, there):
        apollo = await project(here)
        async with there.following(FEED, id=apollo) as events:
            await read_until(events, 1)
            for seq in (2, 3, 4):
                await ticket(here, apollo)
                assert await read_until(events, seq) == [seq]


async def test_revocation_reaches_the_other_replica(database_url, tmp_path, redis, monkeypatch):
    """A token that one replica revokes, the other forgets as soon as it hears of it."""
    monkeypatch.setattr("app.gate.REMEMBER_SECONDS", NEVER)
    async with replicas(database_url, tmp_path, redis, poll_seconds=NEVER) as (here, there):
        made = await here.change("createAccessToken", "accessToken { id } token", name="second")
        second = Account(there.world, None, made["token"])
        assert (await second("{ viewer { kind } }")).status == 200
        await here.do("revokeAccessToken", "accessToken { id }", tokenId=made["accessToken"]["id"])

        async def refused():
            return (await second("{ viewer { kind } }")).status == 401

        await until(refused, 10)


async def test_without_redis_streams_poll(database_url, tmp_path, redis):
    """With Redis gone the server is slower, never wrong: it says so, goes on, and recovers by itself."""
    async with replicas(database_url, tmp_path, redis, poll_seconds=0.2) as (here, there):
        apollo = await project(here)
        async with there.following(FEED, id=apollo) as events:
            await read_until(events, 1)
            assert (await there(HEALTH)).data["health"]["status"] == "OK"
            await redis.kill()
            await ticket(here, apollo)
            assert await read_until(events, 2) == [2]
            health = (await there(HEALTH)).data["health"]
            assert health["status"] == "DEGRADED"
            assert {"name": "bus", "status": "DEGRADED"} in health["components"]
            assert (await there.world.http.get("/readyz")).status_code == 200
            await redis.start()
            await until(lambda: health_is(there, "OK"))
            await ticket(here, apollo)
            assert await read_until(events, 3) == [3]


async def health_is(account, status):
    return (await account(HEALTH)).data["health"]["status"] == status


async def test_frozen_redis_blocks_nobody(database_url, tmp_path, redis):
    """A Redis that takes connections and answers nothing delays no request; health says so within its second."""
    async with replicas(database_url, tmp_path, redis, poll_seconds=0.2) as (here, there):
        apollo = await project(here)
        redis.freeze()
        try:
            async with there.following(FEED, id=apollo) as events:
                for _ in range(3):
                    await ticket(here, apollo)
                assert await read_until(events, 4) == [1, 2, 3, 4]
            assert await health_is(there, "DEGRADED")
        finally:
            redis.thaw()
        await until(lambda: health_is(there, "OK"))


async def test_start_without_redis(database_url, tmp_path):
    """A replica starts while Redis is away, serves, and finds it when it comes."""
    async with valkey() as redis:
        await redis.kill()
        given = Settings(data=tmp_path, orchestrator_enabled=False, redis_url=redis.url)
        async with World(given, database_url).running() as world:
            ada = await world.account("ada")
            await project(ada)
            assert await health_is(ada, "DEGRADED")
            await redis.start()
            await until(lambda: health_is(ada, "OK"))
