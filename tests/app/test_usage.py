"""What work has cost: counted once where it arose, and added up for everything above."""

import asyncio
from datetime import timedelta

import pytest

from app import clock, ids, usage
from app.prices import Tokens
from tests import world as w
from tests.app.claimed import begin, box

FIELDS = "inputTokens outputTokens cacheReadTokens cacheWriteTokens costUsd sandboxSeconds"
NOTHING = dict.fromkeys(FIELDS.split(), 0)
ONE = Tokens(input=1, output=20, cache_read=300, cache_write=4_000)
ALL = f"""query($id: ID!) {{ project(id: $id) {{
    usage {{ {FIELDS} }}
    tickets(first: 50) {{ nodes {{
        id usage {{ {FIELDS} }}
        tasks(first: 10) {{ nodes {{ id usage {{ {FIELDS} }} }} }}
    }} }}
}} }}"""


@pytest.fixture
def settings(tmp_path):
    return w.Settings(data=tmp_path, orchestrator_enabled=False)


async def spend(box, tokens=ONE, cost=500_000):
    async with begin(box.world) as tx:
        await usage.add(tx, box.id, tokens, cost)


async def read(account, project_id):
    return (await account(ALL, id=project_id)).data["project"]


async def test_nothing_was_used(ada, apollo):
    """What no sandbox has worked on has cost nothing, rather than being unknown."""
    ticket = await w.ticket(ada, apollo)
    await w.task(ada, ticket["id"])
    found = await read(ada, apollo)
    [of_ticket] = found["tickets"]["nodes"]
    assert found["usage"] == of_ticket["usage"] == of_ticket["tasks"]["nodes"][0]["usage"] == NOTHING


async def test_sums(ada, apollo):
    """A task has the sum of its tries, a ticket of its tasks, a project of its tickets, and no other's."""
    first = await box(ada, apollo)
    second = await box(ada, apollo, ticket=first.ticket)
    elsewhere = await box(ada, apollo)
    foreign = await box(ada, await w.project(ada))
    for one in (first, first, second, elsewhere, foreign):
        await spend(one)

    found = await read(ada, apollo)

    tickets = {node["id"]: node for node in found["tickets"]["nodes"]}
    tasks = {node["id"]: node["usage"] for node in tickets[first.ticket]["tasks"]["nodes"]}
    assert tasks[first.task] == {**NOTHING, "inputTokens": 2, "outputTokens": 40, "cacheReadTokens": 600,
                                 "cacheWriteTokens": 8_000, "costUsd": 1.0}  # fmt: skip
    assert tasks[second.task]["costUsd"] == 0.5
    assert tickets[first.ticket]["usage"]["costUsd"] == 1.5
    assert tickets[elsewhere.ticket]["usage"]["inputTokens"] == 1
    assert found["usage"]["cacheWriteTokens"] == 16_000


async def test_spent_is_the_sum(ada, apollo):
    """The row that budgets are read from says what the sandboxes of a project say together, also after a rush."""
    boxes = [await box(ada, apollo) for _ in range(3)]
    await asyncio.gather(*(spend(one, cost=1) for one in boxes * 5))
    project_id = ids.require(apollo, "project")
    async with ada.world.server.db.reading() as session:
        assert await usage.spent(session, project_id) == 15 / usage.MICRO
        assert (await usage.of_projects(session, [project_id]))[project_id].cost_usd == 15 / usage.MICRO


async def test_seconds(ada, apollo):
    """Time counts from when a sandbox runs to its end, and while it runs to now."""
    waits, runs, ended = [await box(ada, apollo) for _ in range(3)]
    await runs.write(started_at=clock.now() - timedelta(hours=1))
    await ended.write(started_at=clock.now() - timedelta(seconds=90))
    await ended.end()
    await ended.write(finished_at=clock.now() - timedelta(seconds=60))
    async with ada.world.server.db.reading() as session:
        found = await usage.of_sandboxes(session, [waits.id, runs.id, ended.id])
    assert found[waits.id].sandbox_seconds == 0
    assert 3_600 <= found[runs.id].sandbox_seconds < 3_700
    assert 29 < found[ended.id].sandbox_seconds < 31


async def test_more_than_an_int(ada, apollo):
    """Counts that GraphQL's Int cannot hold are told as the largest that it can, and break no answer."""
    one = await box(ada, apollo)
    await spend(one, Tokens(cache_read=2**40), 0)
    found = await read(ada, apollo)
    assert found["usage"]["cacheReadTokens"] == 2**31 - 1


async def test_many_cost_what_one_costs(ada, statements):
    """Usage of all tickets and tasks of a page takes as many statements as that of one."""
    apollo = await w.project(ada, settings={"concurrency": 20})
    counts = []
    for number in (1, 8):
        for _ in range(number):
            await spend(await box(ada, apollo))
        with statements() as made:
            await read(ada, apollo)
        counts.append(len(made))
    assert counts[0] == counts[1]


async def test_payer(ada, bob, apollo):
    """A sandbox works with the credentials of who made its task, who need not have made the project."""
    await w.share(ada, apollo, bob)
    mine, theirs = await box(ada, apollo), await box(bob, apollo)
    async with ada.world.server.db.reading() as session:
        assert await usage.payer(session, mine.id) == ada.user.id
        assert await usage.payer(session, theirs.id) == bob.user.id
