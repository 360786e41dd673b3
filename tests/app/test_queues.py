"""The queue: whose turn it is, and each thing that holds a task back from its turn."""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text

from app import attempts, ids, machines, queues, tasks
from app.enums import FailureCode, TicketStatus
from tests import world as w
from tests.app.browser import sql
from tests.app.claimed import FLEET, begin
from tests.servers import shared_world

MANY_TASKS = """
    INSERT INTO tasks (id, project_id, ticket_id, title, description, phase, status, priority, attempt, max_attempts,
                       resume)
    SELECT gen_random_uuid(), project_id, id, 'Task ' || n, '', 'testing', 'pending', 'low', 0, 3, false
    FROM tickets, generate_series(1, :n) AS n WHERE id = :ticket
"""

EACH_NEEDS_ANOTHER = """
    INSERT INTO task_dependencies (project_id, task_id, depends_on_id)
    SELECT project_id, id, needed FROM (SELECT project_id, id, lead(id) OVER projects AS needed FROM tasks
                                      WINDOW projects AS (PARTITION BY project_id ORDER BY id)) AS pairs
    WHERE needed IS NOT NULL
"""


def key(node_id):
    return ids.decode(node_id)[1]


@pytest.fixture(scope="module")
async def world(postgres):
    async with shared_world(postgres, orchestrator_enabled=False) as running:
        yield running


@pytest.fixture(scope="module")
async def ada(world):
    return await world.account("ada")


@pytest.fixture
async def apollo(ada):
    """The only project that may start anything."""
    await sql(ada.world, "UPDATE projects SET archived_at = omoi_now()")
    return await w.project(ada)


@pytest.fixture
async def ticket(ada, apollo):
    return (await w.ticket(ada, apollo))["id"]


@pytest.fixture
def queue(ada, ticket):
    """Queues a task of this title, and answers its id."""

    async def add(title="Build the lander", **given):
        return (await w.task(ada, given.pop("ticket", ticket), title=title, **given))["id"]

    return add


@pytest.fixture
def claim(world):
    """The titles of the tasks that a dispatcher is given now."""

    async def titles(fleet=FLEET, **given):
        async with begin(world) as tx:
            given_away = await attempts.claim(tx, fleet, **given)
            found = await tasks.by_ids(tx.session, [sandbox.task_id for sandbox in given_away])
        named = {task.id: task.title for task in found}
        return [named[sandbox.task_id] for sandbox in given_away]

    return titles


@pytest.fixture
def end(world):
    """Lets the attempt at a task end so."""

    async def ended(task_id, **given):
        async with begin(world) as tx:
            sandbox = await attempts.spawn(tx, key(task_id), FLEET)
            await attempts.finish(tx, sandbox.id, {"success": True, "summary": "Done.", **given})

    return ended


async def test_ten_thousand_cost_what_ten_cost(world, ticket, statements):
    """Three statements claim the next tasks, however many wait."""
    await sql(world, MANY_TASKS, ticket=key(ticket), n=10_000)

    async with begin(world) as tx:
        with statements() as made:
            claimed = await tasks.claim(tx.session, provider="nowhere", machines=100, most=50)

    assert len(claimed) == 4
    assert len(made) <= 3


async def test_what_is_held_is_looked_up_by_hash(world, ticket):
    """However little memory the database gives a statement: never is each task compared with each that is held."""
    await sql(world, MANY_TASKS, ticket=key(ticket), n=10_000)
    await sql(world, EACH_NEEDS_ANOTHER)
    limits = {"provider": "nowhere", "place": None, "machines": 100, "most": 50, "only": None}
    async with begin(world) as tx:
        await tx.session.execute(text("ANALYZE tasks, task_dependencies"))
        await tx.session.execute(text("SET LOCAL work_mem = '64kB'"))
        await queues.next_up(tx.session, **limits)
        plan = await tx.session.scalars(text(f"EXPLAIN {queues.NEXT.text}"), limits)

    looked_up = re.findall(r"(\w*) ?SubPlan \d+\)", "\n".join(plan))
    assert looked_up == ["hashed"] * 3


async def test_priority_comes_first(queue, claim):
    """Among tasks of one age the more urgent goes before the others, whenever it was written down."""
    for priority in ("LOW", "MEDIUM", "CRITICAL", "HIGH"):
        await queue(priority, priority=priority)

    assert await claim() == ["CRITICAL", "HIGH", "MEDIUM", "LOW"]


async def test_age_counts_among_equals(queue, claim):
    """Who came first goes first."""
    for title in ("first", "second", "third"):
        await queue(title)

    assert await claim() == ["first", "second", "third"]


async def test_the_old_are_not_forgotten(queue, claim, later):
    """A task without any priority comes first, once it has waited long enough."""
    with later("-13 hours"):
        await queue("old", priority="LOW")
    await queue("young", priority="CRITICAL")

    assert await claim() == ["old", "young"]


async def test_what_others_wait_for_comes_earlier(ada, queue, claim):
    """Of two equal tasks the one goes first that lets others begin, and no longer when nothing waits for it."""
    await queue("older")
    root = await queue("root")
    waiting = await queue("waiting", dependsOn=[root])
    assert await claim(replace(FLEET, provider="one", machines=1)) == ["root"]

    other = await queue("other")
    await ada.do("setTaskDependencies", "task { id }", taskId=waiting, dependsOn=[root, other])
    await ada.do("setTaskDependencies", "task { id }", taskId=waiting, dependsOn=[root])
    assert await claim() == ["older", "other"]


async def test_a_deadline_comes_earlier(world, ticket, queue, claim):
    """What must be ready soon goes before what is more urgent by its word alone."""
    await queue("critical", priority="CRITICAL")
    soon = datetime.now(UTC) + timedelta(minutes=30)
    async with begin(world) as tx:
        await tasks.create(tx, key(ticket), title="soon", deadline_at=soon)

    assert await claim() == ["soon", "critical"]


@pytest.mark.parametrize("status", ["pending", "assigned", "failed", "cancelled"])
async def test_dependencies_fail_closed(world, ada, queue, claim, end, status):
    """Only a completed dependency lets a task pass; one that failed or was cancelled holds it for good."""
    needed = await queue("needed")
    await queue("waiting", dependsOn=[needed])
    if status == "assigned":
        assert await claim() == ["needed"]
    if status == "failed":
        await end(needed, success=False, failure_code=FailureCode.CHECKS_FAILED)
    if status == "cancelled":
        await ada.do("cancelTask", "task { id }", taskId=needed)

    assert await claim() == (["needed"] if status == "pending" else [])


async def test_a_completed_dependency_lets_pass(queue, claim, end):
    """All of them have to be; the last one opens the way."""
    one, two = await queue("one"), await queue("two")
    await queue("waiting", dependsOn=[one, two])
    await end(one)
    assert await claim() == ["two"]

    await end(two)
    assert await claim() == ["waiting"]


async def test_a_blocked_ticket_holds_its_tasks(ada, apollo, queue, claim, ticket):
    """By a person's reason until that is cleared, and by another ticket until that is closed."""
    other = (await w.ticket(ada, apollo))["id"]
    await queue()
    await ada.do("updateTicket", "ticket { id }", ticketId=ticket, blockedReason="No fuel")
    assert await claim() == []
    await ada.do("updateTicket", "ticket { id }", ticketId=ticket, blockedReason=None)
    await ada.do("setTicketBlockers", "ticket { id }", ticketId=ticket, blockedBy=[other])
    assert await claim() == []

    await ada.do("moveTicket", "ticket { id }", ticketId=other, status="CANCELLED")
    assert await claim() == ["Build the lander"]


@pytest.mark.parametrize("status", [TicketStatus.DONE, TicketStatus.CANCELLED])
async def test_a_closed_ticket_starts_nothing(world, queue, claim, ticket, status):
    """What was left in it stays where it is."""
    await queue()
    await sql(world, "UPDATE tickets SET status = :status WHERE id = :id", status=status.value, id=key(ticket))

    assert await claim() == []


async def test_an_archived_project_starts_nothing(ada, apollo, queue, claim):
    """Until it is taken out of the archive."""
    await queue()
    await ada.do("archiveProject", "project { id }", projectId=apollo)
    assert await claim() == []

    await ada.do("archiveProject", "project { id }", projectId=apollo, archived=False)
    assert await claim() == ["Build the lander"]


async def test_a_project_has_its_places(ada, apollo, queue, claim):
    """A full project starts nothing more, while another one goes on, however late its tasks came."""
    await ada.do("updateProject", "project { id }", projectId=apollo, settings={"concurrency": 2})
    for title in ("one", "two", "three"):
        await queue(title)
    other = (await w.ticket(ada, await w.project(ada, name="Gemini")))["id"]
    await queue("elsewhere", ticket=other, priority="LOW")

    assert await claim() == ["one", "two", "elsewhere"]
    assert await claim() == []
    await ada.do("updateProject", "project { id }", projectId=apollo, settings={"concurrency": 1})
    assert await claim() == []


@pytest.mark.parametrize(("spent", "starts"), [(0, True), (4_029_999, True), (4_030_000, False)])
async def test_a_budget_that_is_used_up_starts_nothing(ada, apollo, queue, claim, spent, starts):
    """Up to the last millionth of a dollar."""
    await queue()
    await ada.do("updateProject", "project { id }", projectId=apollo, settings={"budgetUsd": 4.03})
    if spent:
        await sql(ada.world, "INSERT INTO spendings VALUES (:project, :spent)", project=key(apollo), spent=spent)

    assert bool(await claim()) is starts


async def test_a_pause_is_kept(world, queue, claim, later):
    """A task that failed waits for the end of its pause, and not a moment longer."""
    task = await queue()
    async with begin(world) as tx:
        sandbox = await attempts.spawn(tx, key(task), FLEET)
        await attempts.lose(tx, sandbox.id, FailureCode.SPAWN_FAILED, "There was no power.")
    await sql(world, "UPDATE sandboxes SET gone_at = omoi_now() WHERE finished_at IS NOT NULL")
    assert await claim() == []

    with later("10 seconds"):
        assert await claim() == ["Build the lander"]


async def test_no_task_has_two_machines(world, queue, claim, later):
    """The next attempt waits until the machine of the one before is known to be gone."""
    task = await queue()
    async with begin(world) as tx:
        sandbox = await attempts.spawn(tx, key(task), FLEET)
        await attempts.lose(tx, sandbox.id, FailureCode.SANDBOX_LOST, "It vanished.")
    with later("1 hour"):
        assert await claim() == []
        await sql(world, "UPDATE sandboxes SET gone_at = omoi_now() WHERE finished_at IS NOT NULL")
        assert await claim() == ["Build the lander"]


async def test_a_provider_has_its_places(world, queue, claim):
    """A machine takes its place until it is gone, not only until its work has ended."""
    fleet = replace(FLEET, provider="two", machines=2)
    for title in ("one", "two", "three"):
        await queue(title)
    assert await claim(fleet) == ["one", "two"]
    async with begin(world) as tx:
        live = await machines.with_machines(tx.session, fleet)
        await attempts.finish(tx, live[0].id, {"success": True, "summary": "Done."})
    assert await claim(fleet) == []

    await sql(world, "UPDATE sandboxes SET gone_at = omoi_now() WHERE provider = 'two' AND status = 'completed'")
    assert await claim(fleet) == ["three"]


async def test_one_is_picked_out(queue, claim):
    """Whoever starts one task by hand gets this one, or nothing when it may not start."""
    first, second = await queue("first"), await queue("second")
    held = await queue("held", dependsOn=[first])

    assert await claim(only=key(held)) == []
    assert await claim(only=key(second)) == ["second"]
