"""Branches over HTTP with a token: they arrive, and the token is nowhere but on its way."""

import asyncio
import base64
from urllib.parse import quote

import pytest
from sqlalchemy import update
from structlog.testing import capture_logs

from app import ids
from app.enums import RepositoryHost
from app.models import Project
from app.settings import GitCredential
from tests import distant
from tests import world as w
from tests.databases import cloned
from tests.remotes import hosting
from tests.servers import short_folder
from tests.traces import files, processes, sampled, stored
from tests.works import Works, git, working

USER, TOKEN = "worker", "ghx_7mQ2vL9sT4+wZ/8kR1nB"
FORMS = (TOKEN, base64.b64encode(f"{USER}:{TOKEN}".encode()).decode(), quote(TOKEN, safe=""))
GATED = {"checks": ["until test -e ~/go; do sleep 0.1; done"]}  # the work ends when the test says so


@pytest.fixture(scope="module")
async def host():
    with short_folder() as folder:
        async with hosting(folder, TOKEN) as serving:
            yield serving


@pytest.fixture(scope="module")
async def works(postgres, host):
    known = (GitCredential(host.address, USER, TOKEN),)
    hosts = {"git_credentials": known, "git_hosts": (distant.HOST,)}
    async with cloned(postgres) as url, working(url, **hosts) as running:
        yield running


@pytest.fixture
async def project(works, host):
    """A project on that host, whose default branch is afterwards as it was before."""
    before = host.head("main")
    yield await works.project(repository={"cloneUrl": host.url})
    assert host.head("main") == before


def shell(*commands):
    return "\n".join(["```", *commands, "```"])


async def test_the_branch_arrives_and_the_token_is_nowhere(works, project, host, capfd):
    """Not in the box's files, nor in arguments and environments, nor in the log and the database."""
    data = works.folder / "data"

    def look():
        return processes(*FORMS) + files(data / "sandboxes", *FORMS)

    commands = ("echo work > work.txt", "env", "git config --list --show-origin", "cat .git/config; sleep 1")
    with capture_logs() as logged:
        async with sampled(look) as seen:
            task = await works.done(project, "[[obedient]] Bring it", description=shell(*commands))
            await works.cleared()
    assert task["status"] == "COMPLETED", task["failure"]
    assert host.head(task["result"]["branch"]) == task["result"]["commit"]
    assert len(seen) > 10
    assert not [found for found in seen if found]
    assert "git_credential_issued" in [line["event"] for line in logged]
    said = str(logged) + "".join(capfd.readouterr())
    everything = [said.encode(), *await stored(works.world.server.db)]
    assert [value for value in everything if any(form.encode() in value for form in FORMS)] == []


async def test_a_token_that_the_agent_prints(works, project, host):
    """An agent may ask git for it, as any program that pushes must; nothing of that is stored."""
    protocol, _, name = host.address.partition("://")
    asks = f"printf 'protocol={protocol}\\nhost={name}\\n\\n' | git credential fill"
    task = await works.done(project, "[[obedient]] Ask", description=shell(asks, f"{asks} | base64 -w0"))
    plain, _ = await works.outputs(task)
    assert "password=•••" in plain
    assert [
        value for value in await stored(works.world.server.db) if any(form.encode() in value for form in FORMS)
    ] == []


@pytest.fixture
def read_only(host):
    host.password, host.reader = "another", TOKEN
    yield "403"
    host.password, host.reader = TOKEN, "may-only-read"


@pytest.fixture
def wrong(host):
    host.password = "another"
    yield "Authentication failed"
    host.password = TOKEN


@pytest.mark.parametrize("refusal", ["read_only", "wrong"])
async def test_a_token_that_does_not_do(works, project, request, refusal):
    """The task fails at once with git's own sentence: another try would end the same way."""
    sentence = request.getfixturevalue(refusal)
    task = await works.done(project, "[[notes]] Refused")
    assert (task["status"], task["failure"]["code"], task["attempt"]) == ("FAILED", "CREDENTIAL_REJECTED", 1)
    assert sentence in task["failure"]["message"]


@pytest.mark.parametrize("at_once", [True, False])
async def test_two_tasks_on_one_branch(works, project, host, at_once):
    """Both began before either ended, and the branch has the work of both, one upon the other."""
    described = [shell("echo a > a.txt"), shell("echo b > b.txt")]
    ended = await together(works, project, described, "[[obedient]] Write", at_once=at_once)
    assert [task["status"] for task in ended] == ["COMPLETED", "COMPLETED"]
    [branch] = {task["result"]["branch"] for task in ended}
    assert {"a.txt", "b.txt", "README.md"} <= set(host.files(branch))
    assert host.git("rev-list", "--count", f"main..{branch}") == "2"


async def test_two_tasks_in_conflict(works, project, host):
    """The same line of the same file: the first one lands, the second one says so and overwrites nothing."""
    landed, failed = await together(works, project, ["", ""], "[[conflict]] Mine", at_once=False)
    assert (landed["status"], failed["status"]) == ("COMPLETED", "FAILED")
    assert "in the same places" in failed["failure"]["message"]
    assert host.head(landed["result"]["branch"]) == landed["result"]["commit"]


async def together(works, project, descriptions, title, *, at_once):
    """Tasks of one ticket, all with their work done before one of them brings it home, or all bring it at once."""
    await works.account.do("updateProject", "project { id }", projectId=project, settings=GATED)
    ticket = (await w.ticket(works.account, project))["id"]
    given = [{"title": f"{title} {n}", "description": one, "maxAttempts": 1} for n, one in enumerate(descriptions)]
    tasks = [(await w.task(works.account, ticket, **one))["id"] for one in given]
    boxes = [(await works.reaches(task, "RUNNING"))["sandboxes"]["nodes"][0] for task in tasks]
    await asyncio.gather(*(works.happens(box["id"], "CHECK_STARTED") for box in boxes))
    for task, box in zip(tasks, boxes, strict=True):
        (works.folder / "data/sandboxes" / box["name"] / "home/go").touch()
        if not at_once:
            await works.ended(task)
    return [await works.ended(task) for task in tasks]


async def test_an_empty_repository_and_a_bug(works, host):
    """The first branch of a repository without any, named by what kind of work it is."""
    project = await works.project(repository={"cloneUrl": f"{host.address}/empty.git"})
    task = await works.done(project, "[[notes]] It is broken", kind="BUG")
    assert (task["status"], task["result"]["branch"]) == ("COMPLETED", "fix/1-notes-it-is-broken")
    assert (
        git(host.folder / "empty.git", "for-each-ref", "--format=%(refname)")
        == f"refs/heads/{task['result']['branch']}"
    )


async def test_a_path_that_projects_may_not_use(works):
    """It is refused at once, and the sentence names the setting by which the operator allows it."""
    elsewhere = works.folder / "elsewhere"
    git(works.folder, "init", "-q", str(elsewhere))
    given = {"name": "Elsewhere", "repository": {"cloneUrl": str(elsewhere)}}
    [error] = (await works.account.change("createProject", "project { id }", **given))["errors"]
    assert error["path"] == ["repository", "cloneUrl"]
    assert "OMOI_REPOSITORY_FOLDERS" in error["message"]


async def test_what_is_not_allowed_any_more(works):
    """The launch looks again, and the task fails at once with the same sentence."""
    bare = works.repository("moved")
    project = await works.project(repository={"cloneUrl": str(bare)})
    bare.rename(works.folder / "moved.git")
    task = await works.done(project, "[[notes]] Take it")
    assert (task["status"], task["attempt"], len(task["sandboxes"]["nodes"])) == ("FAILED", 1, 1)
    assert "no git repository" in task["failure"]["message"]


async def test_a_project_that_no_admin_made(works, host):
    """A box of theirs does not reach this machine, though nothing but a name would show that the remote is here."""
    bob = await works.world.account("bob")
    project = await w.project(bob)
    async with works.world.server.db.writing() as session:
        await session.execute(
            update(Project)
            .where(Project.id == ids.require(project, "project", "id"))
            .values(repository_host=RepositoryHost.GIT, clone_url=host.url)
        )  # as a public name would that leads here
    before = len(host.asked)
    task = await Works(works.world, bob, works.folder).done(project, "[[notes]] Take it")
    assert (task["status"], len(host.asked)) == ("FAILED", before)
    assert "403" in task["failure"]["message"]


async def test_a_remote_by_ssh(works, distant_origin):
    """No box has a key for it: it goes through the server, and the branch is at the origin when the task has ended."""
    project = await works.project(repository={"cloneUrl": f"git@{distant.HOST}:{distant_origin}"})
    task = await works.done(project, "[[notes]] By ssh")
    assert task["status"] == "COMPLETED", task["failure"]
    assert git(distant_origin, "rev-parse", task["result"]["branch"]) == task["result"]["commit"]
    seen = [event["type"] for event in await works.events(task["sandboxes"]["nodes"][0]["id"])]
    assert "PUSHED" in seen


async def test_an_origin_that_refuses_by_ssh(works, distant_origin):
    """Then nothing was pushed, and nobody says that it was."""
    hook = distant_origin / "hooks" / "pre-receive"
    hook.write_text("#!/bin/sh\necho 'Not on a Friday.' >&2\nexit 1\n")
    hook.chmod(0o755)
    given = {"cloneUrl": f"ssh://git@{distant.HOST}{distant_origin}"}
    project = await works.project(repository=given, settings={"maxAttempts": 1})
    task = await works.done(project, "[[notes]] Refused")
    assert task["status"] == "FAILED"
    assert "Not on a Friday." in task["failure"]["message"]
    assert "PUSHED" not in [event["type"] for event in await works.events(task["sandboxes"]["nodes"][0]["id"])]


@pytest.fixture
def distant_origin(works, request):
    """A repository somewhere else, as far as ssh can tell."""
    bare = works.repository(request.node.name)
    with distant.ssh(works.folder / f"{request.node.name}-ssh"):
        yield bare.rename(works.folder / f"{request.node.name}.git")
