"""Orders: everything that a worker will ever know from us, and nothing of the server's own."""

import base64
import dataclasses
import json

import pytest

from app import ids
from orchestrator import dispatch, orders
from orchestrator.archive import worker_archive
from orchestrator.providers import OrderRefused, Tier
from tests import world as w
from tests.app.browser import sql
from tests.orchestrator.outside import Outside, only, queued, rows
from tests.schema import boxes

SECRET = "sk-ant-canary-of-the-server"
ALWAYS = {
    "SANDBOX_ID",
    "TASK_ID",
    "TICKET_ID",
    "PROJECT_ID",
    "USER_ID",
    "BASE_BRANCH",
    "TASK_DESCRIPTION",
    "TASK_DATA_BASE64",
    "CALLBACK_URL",
    "ANTHROPIC_BASE_URL",
    "OMOI_SANDBOX_TOKEN",
    "PERMISSION_MODE",
    *orders.PATIENCE,
}
REPOSITORY = {"cloneUrl": "https://git.example/work.git", "defaultBranch": "trunk"}


class Unisolated(Outside):
    """A provider whose machines have no walls."""

    def capabilities(self):
        return dataclasses.replace(super().capabilities(), tier=Tier.PROCESS, note="it has no namespaces")


@pytest.fixture
def ordered(world, ada, site):
    """The order for the first sandbox of a new task."""

    async def compose(project, site=site, **given):
        await queued(ada, project, **given)
        await dispatch.run_once(site)
        return await orders.compose(site, (await rows(world))[-1])

    return compose


def with_settings(site, **given) -> object:
    return dataclasses.replace(site, settings=dataclasses.replace(site.settings, **given))


async def test_the_environment_is_what_was_agreed(world, ada, site, ordered):
    """Its names, its ids and its token; the callback is the provider's."""
    project = await w.project(ada, repository=REPOSITORY, settings={"model": "claude-x"})
    env = (await ordered(project)).env
    sandbox = await only(world)

    assert env.keys() == ALWAYS | {"REPO_URL", "BRANCH_NAME", "MODEL"}
    assert (env["SANDBOX_ID"], env["PROJECT_ID"]) == (ids.encode("sandbox", sandbox.id), project)
    assert (env["USER_ID"], env["OMOI_SANDBOX_TOKEN"]) == (ada.id, site.keys.sandbox_token(sandbox.id, 1))
    assert (env["CALLBACK_URL"], env["ANTHROPIC_BASE_URL"]) == ("https://omoi.example", "https://omoi.example/model")
    assert (env["REPO_URL"], env["BASE_BRANCH"]) == ("https://git.example/work.git", "trunk")
    assert (env["BRANCH_NAME"], env["MODEL"]) == (sandbox.branch, "claude-x")
    assert env["PERMISSION_MODE"] == "acceptEdits"


async def test_projects_on_one_repository_do_not_share_a_branch(ada, ordered):
    """Each numbers its tickets from 1: what is equal in number and title is told apart all the same."""
    projects = [await w.project(ada, name=name, repository=REPOSITORY) for name in ("Apollo", "Soyuz")]
    first, second = [(await ordered(project)).env["BRANCH_NAME"] for project in projects]
    assert second.startswith(f"{first}-")


async def test_the_data_are_what_was_agreed(ada, ordered):
    """The task, its ticket and how the project works, as one JSON object; the description says it in words."""
    project = await w.project(ada, settings={"checks": ["pytest -q"], "maxTurns": 7, "enableSkills": True})
    env = (await ordered(project, description="With legs.")).env
    data = json.loads(base64.b64decode(env["TASK_DATA_BASE64"]))

    assert data.keys() == {
        *("task", "ticket", "project", "checks"),
        *("maxTurns", "enableSkills", "subagents", "guide", "author", "commitMessage"),
    }
    assert (data["task"]["id"], data["task"]["attempt"]) == (env["TASK_ID"], 1)
    assert (data["task"]["phase"], data["ticket"]["kind"]) == ("IMPLEMENTATION", "FEATURE")
    assert (data["checks"], data["maxTurns"]) == (["pytest -q"], 7)
    assert (data["enableSkills"], data["subagents"]) == (True, {})
    assert "They are: pytest -q" in data["guide"]
    assert env["TASK_DESCRIPTION"] == "Task 0\n\nWith legs.\n\nIt helps to finish #1 Land on the moon."


async def test_without_a_repository_there_is_none(apollo, ordered):
    """What is not there is not named, so that a worker cannot take an empty word for an address."""
    env = (await ordered(apollo)).env
    assert env.keys() == ALWAYS - {"BASE_BRANCH"}


async def test_no_key_of_the_server_is_in_it(apollo, site, ordered):
    """A model key stays outside of the box."""
    order = await ordered(apollo, with_settings(site, anthropic_api_key=SECRET, anthropic_auth_token=SECRET))
    assert SECRET not in repr(order)
    assert SECRET.encode() not in b"".join(order.files.values())


async def test_the_labels_are_whose_it_is(world, apollo, site, ordered):
    """The same for every order of one sandbox, so that a machine is adopted by its own alone."""
    order = await ordered(apollo)
    sandbox = await only(world)
    assert order.labels == {
        "deployment": site.fleet.deployment,
        "sandbox": ids.encode("sandbox", sandbox.id),
        "attempt": "1",
    }
    assert (await orders.compose(site, sandbox)) == order
    assert order.files == {"worker.pyz": worker_archive()}


async def test_resources_are_the_projects(world, ada, ordered):
    """In the order, and in the row for those who ask later."""
    project = await w.project(ada, settings={"resources": {"cpu": 3, "memoryGb": 5, "diskGb": 7, "image": "python"}})
    order = await ordered(project)
    assert (order.cpu, order.memory_gb, order.disk_gb, order.image) == (3, 5, 7, "python")
    assert (await only(world)).resources == {
        "cpu": 3,
        "memory_gb": 5,
        "disk_gb": 7,
        "snapshot": None,
        "image": "python",
    }


@pytest.mark.parametrize(
    ("egress", "reachable", "everything"),
    [
        ("OFFLINE", [], False),
        ("REGISTRIES", ["packages.example"], False),
        ("OPEN", ["packages.example"], True),
    ],
)
async def test_what_it_may_reach(ada, site, ordered, egress, reachable, everything):
    """Its repository always; registries and the rest as the project says."""
    project = await w.project(ada, repository=REPOSITORY, settings={"egress": egress})
    order = await ordered(project, with_settings(site, registries=("packages.example",)))
    assert (list(order.reachable), order.open_network) == (reachable, everything)
    assert list(order.reachable_in_public) == ["git.example:443"]


@pytest.mark.parametrize("host", ["git.example:3000", "127.0.0.1:3000", "[::1]:3000"])
async def test_what_an_admin_vouched_for_may_be_private(world, site, host):
    """Its repository may then lie in the server's own network."""
    grace = await world.account("grace", admin=True)
    await queued(grace, await w.project(grace, repository={"cloneUrl": f"http://{host}/work.git"}))
    await dispatch.run_once(site)
    order = await orders.compose(site, (await rows(world))[-1])
    assert (list(order.reachable), list(order.reachable_in_public)) == ([host], [])


@pytest.mark.parametrize("port", ["", ":80", ":8443"])
async def test_a_repository_beside_the_server(ada, ordered, port):
    """An address that begins like the server's own is reached like any other, and the worker is told nothing else."""
    address = f"https://omoi.example{port or '.org'}/git/repository.git"
    order = await ordered(await w.project(ada, repository={"cloneUrl": address}))
    assert [*order.reachable, *order.reachable_in_public] == [f"omoi.example{port or '.org:443'}"]
    assert order.env["REPO_URL"] == address
    assert "OMOI_GIT_DOOR" not in order.env


@pytest.mark.parametrize(
    ("given", "refused"),
    [
        ({}, False),
        ({"anthropic_api_key": SECRET}, True),
        ({"anthropic_api_key": SECRET, "allow_unisolated": True}, False),
    ],
)
async def test_a_real_model_works_behind_walls(apollo, site, ordered, given, refused):
    """Without them only the scripted one does, unless the operator says otherwise."""
    exposed = dataclasses.replace(with_settings(site, **given), provider=Unisolated())
    if refused:
        with pytest.raises(OrderRefused, match="it has no namespaces"):
            await ordered(apollo, exposed)
    else:
        assert await ordered(apollo, exposed)


async def test_what_is_launched_without_walls_is_noted(world, apollo, site, ordered):
    """For the gateway, and for good: a machine may be there when the order is written again."""
    unisolated = dataclasses.replace(site, provider=Unisolated())
    await ordered(apollo)
    assert [row.exposed for row in await rows(world)] == [False]
    for again in (unisolated, site):
        await orders.compose(again, (await rows(world))[-1])
        assert [row.exposed for row in await rows(world)] == [True]


async def test_a_users_own_key_is_a_real_model(ada, apollo, site, ordered):
    """It is not the server's alone that counts."""
    await ada.do("setCredential", "credential { kind }", kind="ANTHROPIC", secret=SECRET)
    with pytest.raises(OrderRefused):
        await ordered(apollo, dataclasses.replace(site, provider=Unisolated()))


@pytest.fixture
def tried(world, ada, apollo, site, later):
    """The order for the second try at a task, whose first one left a session and an edit."""

    async def order(**given):
        [task] = await queued(ada, apollo)
        box = await boxes.start(ada, task)
        await box.did("STARTED", {"base": None})
        await box.did("FILE_EDITED", boxes.edited("a.txt"))
        transcript = await box.upload(b"what was said")
        await box.finish(success=False, failureCode="CHECKS_FAILED", sessionId="s-1", transcriptBlob=transcript)
        await sql(world, "UPDATE sandboxes SET gone_at = omoi_now()")
        await ada.do("retryTask", "task { id }", taskId=task, **given)
        assert await dispatch.run_once(site) == 1
        return await orders.compose(site, (await rows(world))[-1])

    return order


async def test_the_next_try_begins_anew(tried):
    """Nothing of the one before is in its home."""
    order = await tried()
    assert (order.files.keys(), "RESUME_SESSION_ID" in order.env) == ({"worker.pyz"}, False)


async def test_a_try_that_resumes_goes_on(tried):
    """The session and the edits of the one before lie in the worker's home."""
    order = await tried(resume=True)
    assert order.env["RESUME_SESSION_ID"] == "s-1"
    assert order.files[".omoi/resume/transcript.jsonl"] == b"what was said"
    edits = json.loads(order.files[".omoi/resume/edits.json"])
    assert [change["path"] for change in edits["changes"]] == ["a.txt"]


async def test_a_long_description_comes_as_a_file(ada, apollo, ordered):
    """Nothing in the environment is too long for a process to start with, and the whole text is in the box."""
    order = await ordered(apollo, description="月" * 60_000)
    assert max(len(f"{name}={value}".encode()) for name, value in order.env.items()) < 128 << 10
    assert "月" * 60_000 in order.files[orders.DESCRIPTION].decode()
    assert orders.DESCRIPTION in order.env["TASK_DESCRIPTION"]
