"""The real key stays outside, what is used is counted once, and a real model needs walls around it."""

import json
import re
from dataclasses import dataclass, field

import pytest
from structlog.testing import capture_logs

from demo import model
from orchestrator.providers import Tier
from tests import world as w
from tests.databases import cloned
from tests.servers import until
from tests.traces import files, processes, sampled, stored
from tests.worker.plane import listening
from tests.works import working

KEY = "sk-ant-api03-Jq5xV0mW8tR2yB7nL4cK"
USAGE = "usage { inputTokens outputTokens }"
COUNTED = f"""query($id: ID!) {{ node(id: $id) {{ ... on Project {{ {USAGE} tickets(first: 9) {{ nodes {{ {USAGE}
  tasks(first: 9) {{ nodes {{ {USAGE} sandboxes(first: 9) {{ nodes {{ {USAGE} }} }} }} }} }} }} }} }} }}"""
HEALTH = "{ health { components { name status detail } } }"
SAID = re.compile(rb'"usage":(\{[^}]*\})')


@dataclass
class Upstream:
    """The scripted model, as one that is paid for: it remembers the keys that were shown, and the bill."""

    address: str = ""
    keys: set[str] = field(default_factory=set)
    read: int = 0
    written: int = 0

    def __post_init__(self):
        self._app = model.application()

    async def __call__(self, scope, receive, send):
        self.keys.add(dict(scope["headers"]).get(b"x-api-key", b"").decode())
        answer = bytearray()

        async def noting(message):
            answer.extend(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, receive, noting)
        finally:
            if told := SAID.findall(answer):
                last = json.loads(told[-1])
                self.read += last["input_tokens"]
                self.written += last["output_tokens"]

    @property
    def bill(self):
        return self.read, self.written


@pytest.fixture(scope="module")
async def upstream():
    made = Upstream()
    async with listening(made) as made.address:
        yield made


@pytest.fixture(scope="module")
async def works(postgres, upstream):
    paid = {"anthropic_api_key": KEY, "anthropic_base_url": upstream.address}
    async with cloned(postgres) as url, working(url, **paid) as running:
        yield running


async def test_the_key_is_nowhere(works, upstream, capfd):
    """Upstream sees it; no file, argument or environment of the box has it, nor the log, nor the database."""
    folder = works.folder / "data/sandboxes"
    project = await works.project()
    commands = "```\nenv\ncat /proc/self/environ | tr '\\0' '\\n'\necho \"$ANTHROPIC_API_KEY\"; sleep 1\n```"
    with capture_logs() as logged:
        async with sampled(lambda: processes(KEY) + files(folder, KEY)) as seen:
            task = await works.done(project, "[[obedient]] Look for the key", description=commands)
            await works.cleared()
    assert task["status"] == "COMPLETED", task["failure"]
    assert upstream.keys == {KEY}
    assert len(seen) > 10
    assert not [found for found in seen if found]
    everything = [str(logged).encode(), "".join(capfd.readouterr()).encode(), *await stored(works.world.server.db)]
    assert [value for value in everything if KEY.encode() in value] == []


async def test_usage_is_the_bill(works, upstream):
    """What upstream charged is what the sandboxes, tasks, tickets and the project have together."""
    read, written = upstream.bill
    project = await works.project()
    first = await works.task(project, "[[notes]] One")
    ticket = (await w.ticket(works.account, project))["id"]
    tasks = [first, *[(await w.task(works.account, ticket, title=f"[[notes]] {n}"))["id"] for n in (2, 3)]]
    assert [(await works.ended(task))["status"] for task in tasks] == ["COMPLETED"] * 3
    await until(lambda: adds_up(works, project, (upstream.read - read, upstream.written - written)))


async def test_a_resumed_session_is_counted_once(works, upstream):
    """The second try has the whole session, and what its first part cost stays with the first try alone."""
    read, written = upstream.bill
    project = await works.project()
    task_id = await works.task(project, "Work in 6 slow steps")
    task = await works.reaches(task_id, "RUNNING")
    await works.happens(task["sandboxes"]["nodes"][0]["id"], "TOOL_USE")
    await works.account.do("cancelTask", "task { status }", taskId=task_id)
    await works.cleared()
    await works.account.do("retryTask", "task { status }", taskId=task_id, resume=True)
    task = await works.ended(task_id)
    assert (task["status"], task["attempt"]) == ("COMPLETED", 2)
    await until(lambda: adds_up(works, project, (upstream.read - read, upstream.written - written)))


async def adds_up(works, project, bill):
    """On each level the same, and no sandbox has had it for nothing."""
    found = (await works.account(COUNTED, id=project)).data["node"]
    tickets = found["tickets"]["nodes"]
    tasks = [task for ticket in tickets for task in ticket["tasks"]["nodes"]]
    sandboxes = [sandbox for task in tasks for sandbox in task["sandboxes"]["nodes"]]
    return all(counted(level) == bill for level in ([found], tickets, tasks, sandboxes)) and all(
        counted([one]) > (0, 0) for one in sandboxes
    )


def counted(those):
    return tuple(sum(one["usage"][name] for one in those) for name in ("inputTokens", "outputTokens"))


async def test_a_real_model_without_walls_is_refused(database_url, upstream):
    """Where sandboxes are only processes a real key is not used, and the sentence names what would allow it."""
    paid = {"anthropic_api_key": KEY, "anthropic_base_url": upstream.address}
    before = upstream.bill
    async with working(database_url, **paid, server={"tier": Tier.PROCESS}) as works:
        task = await works.done(await works.project(), "[[notes]] Work here")
    assert (task["status"], task["attempt"]) == ("FAILED", 1)
    assert "OMOI_ALLOW_UNISOLATED" in task["failure"]["message"]
    assert upstream.bill == before


@pytest.mark.parametrize("given", [{}, {"anthropic_api_key": KEY, "allow_unisolated": True}])
async def test_without_walls(database_url, upstream, given):
    """The scripted model works there, and a real one when the operator allows it; `health` says how it is."""
    given = {"anthropic_base_url": upstream.address, **given}
    async with working(database_url, **given, server={"tier": Tier.PROCESS}) as works:
        task = await works.done(await works.project(), "[[notes]] Work here")
        await works.cleared()
        assert task["status"] == "COMPLETED", task["failure"]
        parts = (await works.account(HEALTH)).data["health"]["components"]
    [sandboxes] = [part for part in parts if part["name"] == "sandboxes"]
    assert sandboxes["status"] == "DEGRADED"
    assert "tier PROCESS" in sandboxes["detail"]
