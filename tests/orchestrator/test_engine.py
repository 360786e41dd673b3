"""The engine: each loop turns, none dies silently, and any number of engines may run."""

import asyncio
import contextlib

import pytest
import structlog

from app.errors import Conflict
from app.settings import Settings
from orchestrator import engine
from orchestrator.engine import Engine, Loop
from orchestrator.launch import Launcher
from tests.app.browser import sql
from tests.servers import shared_world, until
from tests.world import World

LOOP_NAMES = ("dispatch", "idle", "launch", "rescue", "retention", "sweep", "watch")
LOOPS = "{ health { loops { name lastRunAt lastDurationMs lastError runs } } }"


@pytest.fixture(scope="module")
async def world(postgres):
    async with shared_world(postgres, orchestrator_enabled=False) as running:
        yield running


@pytest.fixture(scope="module")
async def ada(world):
    return await world.account("ada")


async def loop_of(account, name):
    """What health says of a loop; None before its first run was noted."""
    loops = (await account(LOOPS)).data["health"]["loops"]
    return next((loop for loop in loops if loop["name"] == name), None)


@contextlib.asynccontextmanager
async def turning(world, run_once, name="test", seconds=0.01):
    async with Engine(
        world.server.db, world.server.bus, [Loop(name=name, seconds=seconds, run_once=run_once)]
    ).running():
        yield


async def test_runs_are_noted(world, ada):
    """Whoever asks any replica learns when each loop ran, how long that took, and how often."""

    async def work():
        await asyncio.sleep(0.02)

    async with turning(world, work):

        async def ran_thrice():
            loop = await loop_of(ada, "test")
            return loop and loop["runs"] >= 3

        await until(ran_thrice)
    loop = await loop_of(ada, "test")
    assert loop["lastDurationMs"] >= 20
    assert (loop["lastRunAt"] is not None, loop["lastError"]) == (True, None)


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (Conflict("The moon is taken."), "The moon is taken."),
        (ZeroDivisionError("canary"), "ZeroDivisionError; the log of"),
        (ValueError("NUL \0 and \ud800"), "ValueError; the log of"),
        (TimeoutError(), "TimeoutError; the log of"),
    ],
)
async def test_failing_loop_goes_on(world, ada, monkeypatch, failure, told):
    """A failure is logged and shown, without what an exception may quote, until a turn succeeds."""
    monkeypatch.setattr(engine, "BACKOFF_SECONDS", 0.01)
    failing = True

    async def work():
        if failing:
            raise failure

    async def error():
        loop = await loop_of(ada, "test")
        return loop and loop["lastError"]

    with structlog.testing.capture_logs() as logs:
        async with turning(world, work):
            await until(error)
            assert (await error()).startswith(told)
            assert "canary" not in await error()
            failing = False
            await until(lambda: _is_none(error()))
    assert {(entry["event"], entry["loop"]) for entry in logs if entry["event"] == "loop_failed"} == {
        ("loop_failed", "test")
    }


async def test_a_turn_that_hangs_is_ended(world, ada, monkeypatch):
    """What never answers becomes a failure with a name, the log says where it hung, and the loop goes on."""
    monkeypatch.setattr(engine, "BACKOFF_SECONDS", 0.01)
    monkeypatch.setattr(engine, "TURN_SECONDS", 0.5)
    hangs = asyncio.Event()

    async def error():
        loop = await loop_of(ada, "test")
        return loop and loop["lastError"]

    with structlog.testing.capture_logs() as logs:
        async with turning(world, hangs.wait):
            await until(error)
            assert (await error()).startswith("Ended after 0.5 seconds; the log of ")
            hangs.set()
            await until(lambda: _is_none(error()))
    assert {(entry["event"], entry["exc_info"]) for entry in logs} == {("loop_failed", True)}


async def _is_none(coming):
    return await coming is None


@pytest.mark.parametrize(("failures", "expected"), [(0, 30), (1, 2), (2, 4), (3, 8), (6, 64), (7, 64), (2_000, 64)])
def test_failing_loop_backs_off(failures, expected):
    """Each failure in a row doubles the pause up to a minute, and replicas drift apart."""
    pauses = {engine.pause_seconds(Loop(name="test", seconds=30, run_once=asyncio.sleep), failures) for _ in range(100)}
    assert len(pauses) > 90
    assert expected * 0.9 <= min(pauses) < max(pauses) <= expected * 1.1


async def test_two_engines_are_harmless(world, ada):
    """The same loops in two processes: both run, both note, nothing fails."""
    with structlog.testing.capture_logs() as logs:
        site = world.server.site
        await site.provider.start(site.address)
        turning = engine.loops(site, Launcher(site))
        one, two = (Engine(site.db, site.bus, turning) for _ in range(2))
        async with one.running(), two.running():

            async def ran():
                loop = await loop_of(ada, "retention")
                return loop and loop["lastError"] is None

            await until(ran)
    assert not logs


async def test_loop_survives_the_loss_of_its_notes(world, ada):
    """When a run cannot be noted, the loop is not lost with it."""
    turns = 0

    async def work():
        nonlocal turns
        turns += 1

    with structlog.testing.capture_logs() as logs:
        async with turning(world, work):
            await until(lambda: turns)
            await sql(world, "ALTER TABLE loop_runs RENAME TO elsewhere")
            await until(lambda: logs)
            await sql(world, "ALTER TABLE elsewhere RENAME TO loop_runs")
            seen = turns
            await until(lambda: turns > seen + 1)


@pytest.mark.parametrize("enabled", [True, False])
async def test_replica_that_only_answers(database_url, tmp_path, enabled):
    """ORCHESTRATOR_ENABLED=false: no loop runs here."""
    settings = Settings(data=tmp_path, orchestrator_enabled=enabled)
    async with World(settings, database_url).running() as world:
        ada = await world.account("ada")
        if enabled:
            await until(lambda: loop_of(ada, "retention"))
        assert {task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("loop ")} == (
            {f"loop {name}" for name in LOOP_NAMES} if enabled else set()
        )
        assert (await loop_of(ada, "retention") is not None) == enabled
