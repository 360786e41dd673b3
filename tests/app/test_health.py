"""`health`: what everybody may know about the server, and the numbers that are the admins' alone."""

import pytest

from app import health
from app.enums import HealthStatus
from app.models import LoopRun
from tests.app.browser import sql
from tests.world import task, ticket

HEALTH = """{ health {
  status version pendingTasks oldestDueTaskSeconds
  components { name status detail latencyMs } loops { name lastError runs }
} }"""


async def test_healthy_server(ada):
    """A server that is well says so, part by part, with its version."""
    answer = (await ada(HEALTH)).data["health"]
    assert (answer["status"], answer["version"]) == ("OK", health.VERSION)
    parts = {part["name"]: part for part in answer["components"]}
    assert set(parts) == {"database", "bus"}
    assert parts["database"]["latencyMs"] > 0
    assert "memory" in parts["bus"]["detail"]


async def test_numbers_are_for_admins(world, ada, apollo):
    """How much work waits on the whole server is told to admins, and to nobody else."""
    root = await world.account("root", admin=True)
    await task(ada, (await ticket(ada, apollo))["id"])
    await sql(world, "UPDATE tasks SET due_at = omoi_now() - interval '1 minute'")
    mine, theirs = (await ada(HEALTH)).data["health"], (await root(HEALTH)).data["health"]
    assert (mine["pendingTasks"], mine["oldestDueTaskSeconds"]) == (None, None)
    assert theirs["pendingTasks"] == 1
    assert 60 <= theirs["oldestDueTaskSeconds"] < 120


async def test_nothing_waits(world):
    """Without tasks there is no oldest one."""
    root = await world.account("root", admin=True)
    answer = (await root(HEALTH)).data["health"]
    assert (answer["pendingTasks"], answer["oldestDueTaskSeconds"]) == (0, None)


async def test_newest_run_of_each_loop(world, ada):
    """Several processes run a loop; who asks hears of the last run, whoever made it. Who is gone is forgotten."""
    for process, age in (("old", "2 minutes"), ("new", "1 minute"), ("gone", "2 days")):
        await sql(
            world,
            "INSERT INTO loop_runs SELECT 'sweep', :process, omoi_now() - cast(:age AS text)::interval, 1, :process, 7",
            process=process,
            age=age,
        )
    loops = {loop["name"]: loop for loop in (await ada(HEALTH)).data["health"]["loops"]}
    assert loops["sweep"] == {"name": "sweep", "lastError": "new", "runs": 7}
    async with world.server.db.writing() as session:
        await sql(world, "DELETE FROM loop_runs WHERE process IN ('old', 'new')")
        await health.forget_old_runs(session)
    assert "sweep" not in {loop["name"] for loop in (await ada(HEALTH)).data["health"]["loops"]}


@pytest.mark.parametrize(
    ("statuses", "worst"), [("OK OK", "OK"), ("OK DEGRADED", "DEGRADED"), ("DOWN DEGRADED OK", "DOWN")]
)
def test_worst_part_decides(statuses, worst):
    """A server is as well as its worst part."""
    parts = [health.Component(name="part", status=HealthStatus[status]) for status in statuses.split()]
    assert health.overall(parts) is HealthStatus[worst]


def test_a_failing_loop_is_seen():
    """All parts are well, and one loop's last run failed: DEGRADED."""
    parts = [health.Component(name="part", status=HealthStatus.OK)]
    assert health.overall(parts, [LoopRun(last_error=None)]) is HealthStatus.OK
    assert health.overall(parts, [LoopRun(last_error=None), LoopRun(last_error="No.")]) is HealthStatus.DEGRADED


async def test_strangers_are_told_nothing(world):
    """Without an account there is no health, only the probes."""
    assert (await world.ask(HEALTH)).codes == ["UNAUTHENTICATED"]
