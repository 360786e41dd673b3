"""Several replicas on one Postgres and one Redis are one server to their users."""

import contextlib
from dataclasses import replace

import pytest

from app.settings import Settings
from tests.schema import boxes
from tests.servers import until, valkey
from tests.world import Account, World, project, share, ticket

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


FOLLOW = "subscription($id: ID!) { sandboxEvents(sandboxId: $id) { events { seq } } }"


@contextlib.asynccontextmanager
async def without_redis(ada, settings):
    """A third server on the same database, which nobody ever rings."""
    given = replace(settings, redis_url=None, stream_poll_seconds=0.2)
    async with World(given, ada.world.database_url).running() as world:
        yield Account(world, ada.user, ada.token)


@contextlib.asynccontextmanager
async def followed(accounts, sandbox_id):
    async with contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(one.following(FOLLOW, id=sandbox_id)) for one in accounts]


async def everywhere(following, seq):
    """Each of them hears everything up to there, once and in order."""
    for events in following:
        events.seen = getattr(events, "seen", [])
        while len(events.seen) < seq:
            events.seen += [event["seq"] for event in (await events.next())["events"]]
        assert events.seen == list(range(1, seq + 1))


async def test_reports_are_seen_through_every_replica(database_url, tmp_path, redis, monkeypatch):
    """Also through one without Redis, and while Redis answers nobody: no report waits for it, and nothing is lost."""
    async with (
        replicas(database_url, tmp_path, redis, poll_seconds=0.2) as (here, there),
        without_redis(here, here.world.settings) as alone,
    ):
        box = await boxes.running(here, await project(here))
        async with followed([here, there, alone], box.id) as following:
            await box.did("LOG")
            await everywhere(following, 3)
            with monkeypatch.context() as patch:
                patch.setattr("app.bus.PUBLISH_SECONDS", NEVER)  # who waited for it would wait for ever
                redis.freeze()
                for _ in range(20):
                    await box.did("LOG")
                await everywhere(following, 23)
            assert await health_is(there, "DEGRADED")
            assert await health_is(alone, "OK")
            redis.thaw()
            await until(lambda: health_is(there, "OK"))
            await box.did("LOG")
            await everywhere(following, 24)


async def test_what_redis_did_not_carry_is_read_when_it_is_back(database_url, tmp_path, redis):
    """The gap itself is heard of: nobody polls here, and nothing further happens."""
    async with replicas(database_url, tmp_path, redis, poll_seconds=NEVER) as (here, there):
        box = await boxes.running(here, await project(here))
        async with followed([there], box.id) as following:
            await everywhere(following, 2)
            await redis.kill()
            await until(lambda: not there.world.server.bus.backend.connected)
            await box.did("LOG")
            await until(lambda: not here.world.server.bus._waiting)
            await redis.start()
            await everywhere(following, 3)


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


async def removed_elsewhere(here, there):
    """The last word to a member of a project whom the other replica removes."""
    apollo = await project(here)
    bob = await here.world.account("bob")
    await share(here, apollo, bob)
    async with Account(there.world, bob.user, bob.token).following(FEED, id=apollo) as events:
        await read_until(events, 2)
        await here.do("removeMember", "project { id }", projectId=apollo, userId=bob.id)
        while (message := await events.message())["type"] == "next":
            pass
    return message["type"], message["payload"][0]["extensions"]["code"]


async def test_a_member_removed_elsewhere_is_ended_by_a_ring(database_url, tmp_path, redis, monkeypatch):
    """Nobody asks by itself here: the other replica says that there is a reason to look."""
    monkeypatch.setattr("app.rights.WATCH_SECONDS", NEVER)
    async with replicas(database_url, tmp_path, redis, poll_seconds=NEVER) as (here, there):
        assert await removed_elsewhere(here, there) == ("error", "FORBIDDEN")


async def test_a_member_removed_elsewhere_is_ended_without_a_ring(database_url, tmp_path):
    """No bus joins these two, and no stream is polled: the question that is asked by itself finds it."""
    given = Settings(data=tmp_path, orchestrator_enabled=False, redis_url=None, stream_poll_seconds=NEVER)
    async with World(given, database_url).running() as one, World(given, database_url).running() as two:
        ada = await one.account("ada")
        assert await removed_elsewhere(ada, Account(two, ada.user, ada.token)) == ("error", "FORBIDDEN")
