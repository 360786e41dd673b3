"""Sandboxes through the front door: who sees which, how they start and stop, and what is told about them."""

import asyncio
from dataclasses import replace

import pytest
from sqlalchemy import update

from app import sandboxes, transactions
from app.auth import SYSTEM
from app.models import Sandbox
from tests import world as w
from tests.schema import boxes

LIST = """query($filter: SandboxFilter) { sandboxes(filter: $filter, first: 100) { totalCount nodes { id } } }"""
READ = """query($id: ID!) { sandbox(id: $id) { name provider attempt status lastSeq branch finishedAt
  boot { name startedAt finishedAt error } resources { cpu memoryGb } failure { code message retryable }
  digest { epoch count lastSeq sha256 } transcript { sessionId sizeBytes jsonl }
  task { id sandbox { id } sandboxes { totalCount nodes { id attempt } } } project { id } } }"""
LOG = "query($id: ID!, $lines: Int) { sandbox(id: $id) { log(lines: $lines) } }"
MANY = """query($id: ID!) { project(id: $id) { sandboxes(first: 50) { totalCount nodes { id lastSeq usage { costUsd }
  project { name } task { title sandbox { id } sandboxes(first: 2) { totalCount nodes { id } } result { summary } }
  failure { retryable } boot { name } digest { sha256 } transcript { sizeBytes } heartbeats { count }
  events(first: 3, types: [MESSAGE]) { totalCount nodes { id cursor } } event(seq: 2) { seq }
  eventsAround(seq: 2, count: 3) { seq } changes { path diff additions }
  trajectory(first: 2) { totalCount nodes { number finishedAt text events { seq } } }
  messages(first: 2) { totalCount nodes { body sandbox { id } } } } } } }"""


@pytest.fixture
def settings(settings):
    return replace(settings, local_sandboxes=20)


@pytest.fixture
async def box(ada, apollo):
    return await boxes.running(ada, apollo)


async def read(account, box):
    answer = await account(READ, id=box.id)
    assert answer.errors == []
    return answer.data["sandbox"]


async def listed(account, **wanted):
    found = (await account(LIST, filter=wanted)).data["sandboxes"]
    assert found["totalCount"] == len(found["nodes"])
    return [node["id"] for node in found["nodes"]]


async def write(box, **values):
    async with box.world.server.db.writing() as session:
        await session.execute(update(Sandbox).where(Sandbox.id == box.key).values(**values))


async def test_a_spawned_sandbox_is_one_try_at_its_task(ada, apollo):
    """Found from the task, in the project, and by its id."""
    box = await boxes.spawn(ada, apollo)

    told = await read(ada, box)

    assert (told["status"], told["attempt"], told["finishedAt"]) == ("PROVISIONING", 1, None)
    assert told["name"].endswith(box.id.removeprefix("sandbox_"))
    assert told["project"] == {"id": apollo}
    tries = {"totalCount": 1, "nodes": [{"id": box.id, "attempt": 1}]}
    assert told["task"] == {"id": box.task, "sandbox": {"id": box.id}, "sandboxes": tries}


async def test_a_task_has_one_sandbox_at_a_time(ada, apollo):
    """Spawned again, also at once, it is the same one."""
    box = await boxes.spawn(ada, apollo)
    again = await asyncio.gather(*(boxes.start(ada, box.task) for _ in range(3)))
    assert {one.id for one in again} == {box.id}


async def test_what_holds_a_task_back_holds_its_sandbox_back(ada, apollo):
    """The refusal says what; only its place in the queue is passed over."""
    ticket = (await w.ticket(ada, apollo))["id"]
    needed = (await w.task(ada, ticket))["id"]
    waiting = (await w.task(ada, ticket, dependsOn=[needed]))["id"]

    payload = await ada.change("spawnSandbox", "sandbox { id }", taskId=waiting)

    assert (payload["sandbox"], w.refusals(payload)) == (None, [("CONFLICT", ["taskId"])])
    assert "It depends on" in payload["errors"][0]["message"]


async def test_a_stopped_sandbox_is_asked_to_leave_and_its_task_ends(ada, box):
    """It says by whom and why; the worker hears it; stopped again nothing changes."""
    await ada.do("stopSandbox", "sandbox { id }", sandboxId=box.id, reason="Wrong moon")
    stopping = await read(ada, box)
    await box.finish(success=False, summary="Left.", failureCode="CANCELLED")
    ended = await read(ada, box)

    assert (stopping["status"], stopping["task"]["sandbox"]) == ("STOPPING", {"id": box.id})
    assert ended["failure"] == {"code": "CANCELLED", "message": "Wrong moon", "retryable": True}
    assert (ended["status"], ended["task"]["sandbox"]) == ("CANCELLED", None)
    again = await ada.change("stopSandbox", "sandbox { id }", sandboxId=box.id)
    assert w.refusals(again) == [("SANDBOX_NOT_RUNNING", ["sandboxId"])]


async def test_a_retry_is_another_sandbox(ada, box):
    """The newest first; the earlier one keeps what it was."""
    await ada.do("stopSandbox", "sandbox { id }", sandboxId=box.id)
    await box.finish(success=False, summary="Left.")
    await write(box, gone_at=Sandbox.finished_at)
    await ada.do("retryTask", "task { id }", taskId=box.task, resume=True)
    second = await boxes.start(ada, box.task)

    told = await read(ada, second)
    assert (told["attempt"], told["status"]) == (2, "PROVISIONING")
    assert [node["id"] for node in told["task"]["sandboxes"]["nodes"]] == [second.id, box.id]


async def test_a_list_holds_the_viewers_own_and_what_the_filter_says(ada, bob, apollo, box):
    """By project, task, status and whether they have ended; an id of nothing, or of others, finds nothing."""
    gemini = await w.project(ada, name="Gemini")
    other = await boxes.spawn(ada, gemini)
    theirs = await boxes.spawn(bob, await w.project(bob))
    await box.finish()

    assert (await listed(ada), await listed(bob)) == ([other.id, box.id], [theirs.id])
    assert (await listed(ada, projectId=apollo), await listed(ada, taskId=other.task)) == ([box.id], [other.id])
    assert (await listed(ada, active=True), await listed(ada, active=False)) == ([other.id], [box.id])
    assert await listed(ada, statuses=["COMPLETED", "LOST"]) == [box.id]
    for nothing in ({"projectId": theirs.id}, {"taskId": theirs.task}, {"taskId": "garbage"}, {"statuses": []}):
        assert await listed(ada, **nothing) == []
    document = "query($id: ID!) { project(id: $id) { sandboxes(filter: {active: true}) { totalCount } } }"
    assert (await ada(document, id=apollo)).data["project"]["sandboxes"] == {"totalCount": 0}


async def test_pages_go_through_all_sandboxes(ada, apollo):
    """The newest first, and each once."""
    made = [(await boxes.spawn(ada, apollo)).id for _ in range(4)]
    document = """query($after: String) { sandboxes(first: 3, after: $after) { nodes { id }
      pageInfo { endCursor hasNextPage } } }"""

    first = (await ada(document)).data["sandboxes"]
    rest = (await ada(document, after=first["pageInfo"]["endCursor"])).data["sandboxes"]

    assert [node["id"] for node in first["nodes"] + rest["nodes"]] == made[::-1]
    assert (first["pageInfo"]["hasNextPage"], rest["pageInfo"]["hasNextPage"]) == (True, False)


async def test_a_start_tells_its_steps(ada, apollo):
    """With their times, and with what went wrong."""
    box = await boxes.spawn(ada, apollo)
    moment = "2026-01-31T12:00:00Z"
    steps = [
        {"name": "order", "startedAt": moment, "finishedAt": moment, "error": None},
        {"name": "machine", "startedAt": moment, "finishedAt": None, "error": "No room."},
    ]
    async with box.world.server.db.writing() as session:
        await sandboxes.note_boot(session, box.key, steps)

    told = (await read(ada, box))["boot"]

    assert [(step["name"], step["error"]) for step in told] == [("order", None), ("machine", "No room.")]
    assert told[0]["startedAt"] == told[0]["finishedAt"] == "2026-01-31T12:00:00.000000Z"
    assert told[1]["finishedAt"] is None


async def test_the_log_of_a_machine_that_is_gone_is_what_was_kept(ada, box):
    """The last lines of it; what is known to be secret is masked; a number of lines that makes no sense is refused."""
    await box.finish()
    server = box.world.server
    async with transactions.begin(server.db, server.bus, SYSTEM, request_id="test") as tx:
        await sandboxes.gone(tx, box.key, log=f"one\ntwo {box.token}\nthree\n")

    whole = (await ada(LOG, id=box.id)).data["sandbox"]["log"]
    last = (await ada(LOG, id=box.id, lines=1)).data["sandbox"]["log"]

    assert (whole, last) == ("one\ntwo •••\nthree\n", "three\n")
    for lines in (0, -1, 10_001):
        assert (await ada(LOG, id=box.id, lines=lines)).codes == ["BAD_USER_INPUT"]


async def test_a_transcript_is_there_once_it_was_kept(ada, box):
    """By the hash under which it was uploaded; null before, and where the upload never came."""
    lines = '{"a": 1}\n{"b": "ü"}\n'
    sha256 = await box.upload(lines.encode())
    before = (await read(ada, box))["transcript"]
    await box.finish(sessionId="s-1", transcriptBlob=sha256)
    other = await boxes.running(ada, (await read(ada, box))["project"]["id"])
    await other.finish(sessionId="s-2", transcriptBlob="ab" * 32)

    assert (before, (await read(ada, other))["transcript"]) == (None, None)
    assert (await read(ada, box))["transcript"] == {
        "sessionId": "s-1",
        "sizeBytes": len(lines.encode()),
        "jsonl": lines,
    }


async def test_the_digest_proves_that_nothing_is_missing(ada, box):
    """It counts what is kept, and changes with every event."""
    before = await read(ada, box)
    await box.did("LOG", {"text": "x"})
    after = await read(ada, box)

    assert before["digest"]["count"] == before["digest"]["lastSeq"] == before["lastSeq"]
    assert (after["digest"]["count"], after["lastSeq"]) == (before["lastSeq"] + 1, before["lastSeq"] + 1)
    assert len(after["digest"]["sha256"]) == 64
    assert (after["digest"]["sha256"], after["digest"]["epoch"]) != (before["digest"]["sha256"], None)


async def test_only_admins_are_told_how_many_run(ada, world, box):
    """All that have not ended, of all projects."""
    grace = await world.account("grace", admin=True)
    document = "{ health { activeSandboxes } }"

    assert (await grace(document)).data["health"]["activeSandboxes"] == 1
    assert (await ada(document)).data["health"]["activeSandboxes"] is None
    await box.finish()
    assert (await grace(document)).data["health"]["activeSandboxes"] == 0


async def test_many_sandboxes_cost_what_two_cost(ada, statements):
    """With their events, turns, changes, messages, tasks and digests."""
    costs = []
    for name, count in (("few", 2), ("many", 8)):
        project = await w.project(ada, name=name, settings={"concurrency": 50})
        for _ in range(count):
            box = await boxes.running(ada, project)
            await box.report(
                box.event("MESSAGE", {"text": "Hello"}, turn=1),
                box.event("FILE_EDITED", boxes.edited("a.txt"), turn=1),
            )
            await ada.do("injectMessage", "message { id }", sandboxId=box.id, body="Go")
        with statements() as made:
            answer = await ada(MANY, id=project)
        assert answer.errors == []
        costs.append(len(made))
        nodes = answer.data["project"]["sandboxes"]["nodes"]
        assert len(nodes) == count
        assert all(node["changes"][0]["path"] == "a.txt" and node["trajectory"]["totalCount"] == 1 for node in nodes)

    assert costs[0] == costs[1] <= 30
