"""Remotes by ssh and git addresses: the server's mirror is as its origin is, and has no push that the origin lacks."""

import asyncio
import os
import shutil
import time

import psutil
import pytest
from sqlalchemy import update

from app import ids, mirrors
from app.models import Project
from tests import distant
from tests import world as w
from tests.app.claimed import box
from tests.app.test_git import BRANCH, OUTCOMES, door, make_repository, must, run
from worker.git import BEHIND, GitFailed

FLOOD = 12


@pytest.fixture(scope="module")
async def original(tmp_path_factory):
    folder = tmp_path_factory.mktemp("original") / "moon.git"
    await make_repository(folder)
    return folder


@pytest.fixture
def ssh(tmp_path):
    with distant.ssh(tmp_path / "ssh") as program:
        yield program


@pytest.fixture
async def daemon(tmp_path):
    async with distant.daemon(tmp_path) as address:
        yield address


@pytest.fixture
def settings(tmp_path, daemon):
    return w.Settings(data=tmp_path / "data", orchestrator_enabled=False, git_hosts=(distant.HOST, daemon))


@pytest.fixture
def origin(original, tmp_path):
    return shutil.copytree(original, tmp_path / "moon.git")


@pytest.fixture
async def grace(world):
    return await world.account("grace", admin=True)


@pytest.fixture
def places(ssh, daemon, origin):
    return {"host": distant.HOST, "path": origin, "daemon": daemon}


@pytest.fixture
def address(places):
    return "ssh://git@{host}{path}".format_map(places)


@pytest.fixture
async def mine(grace, address):
    project = await w.project(grace, repository={"cloneUrl": address})
    return await box(grace, project, branch=BRANCH)


@pytest.fixture
async def clone(world, mine, tmp_path):
    """A clone on the sandbox's branch, with a commit of its own."""
    return await cloned(world, mine, tmp_path / "clone")


async def cloned(world, mine, folder):
    await must("clone", "-q", door(world), str(folder), cwd=folder.parent, token=mine.token)
    await must("switch", "-qc", BRANCH, cwd=folder)
    (folder / folder.name).write_bytes(os.urandom(100_000))
    await must("add", "-A", cwd=folder)
    await must("commit", "-qm", "Work", cwd=folder)
    return folder


async def push(clone, mine, *options):
    return await run("push", "-q", *options, "origin", BRANCH, cwd=clone, token=mine.token)


async def head(repository, branch=BRANCH):
    return (await run("rev-parse", "-q", "--verify", f"refs/heads/{branch}", cwd=repository)).out


def mirror_of(world):
    [folder] = (world.settings.data / "mirrors").iterdir()
    return folder


@pytest.mark.parametrize("form", ["ssh://git@{host}{path}", "git@{host}:{path}", "git://{daemon}/moon.git"])
async def test_clone_and_push(world, grace, places, origin, tmp_path, form):
    """What a sandbox pushes is at the origin when its push has ended, also what it does later."""
    url = form.format_map(places)
    mine = await box(grace, await w.project(grace, repository={"cloneUrl": url}), branch=BRANCH)
    clone = await cloned(world, mine, tmp_path / "clone")
    for message in ("More", "Still more"):
        assert OUTCOMES[(await push(clone, mine)).code] == "done"
        assert await head(origin) == await head(clone) == await head(mirror_of(world))
        await must("commit", "-q", "--allow-empty", "-m", message, cwd=clone)


async def test_the_origin_refuses(clone, mine, origin, world):
    """Then the push is refused, in the origin's own words, and the mirror has it neither."""
    hook = origin / "hooks" / "pre-receive"
    hook.write_text("#!/bin/sh\necho 'Not on a Friday.' >&2\nexit 1\n")
    hook.chmod(0o755)
    said = await push(clone, mine)
    assert OUTCOMES[said.code] == "refused"
    assert "Not on a Friday." in said.err
    assert await head(origin) == await head(mirror_of(world)) == ""


async def test_the_way_onward_is_closed(clone, mine, ssh, origin, world):
    """An origin that is gone in the middle of a push refuses it too, and a worker knows that waiting helps."""
    ssh.before_push("echo 'ssh: connect to host git.example port 22: Connection refused'; kill $PPID")
    said = await push(clone, mine)
    assert OUTCOMES[said.code] == "refused"
    assert GitFailed("push", said.err).away, said.err
    assert await head(origin) == await head(mirror_of(world)) == ""


async def test_others_were_quicker(clone, mine, ssh, origin, tmp_path):
    """Git says so as at the origin itself, and after a rebase the work of both is there."""
    other = tmp_path / "other"
    await must("clone", "-q", str(origin), str(other), cwd=tmp_path)
    await must("commit", "-q", "--allow-empty", "-m", "Theirs", cwd=other)
    ssh.before_push(f"cd {other} && git push -q origin HEAD:{BRANCH} 2>&1; rm {ssh.folder}/before")
    said = await push(clone, mine)
    assert BEHIND.search(said.err), said.err
    await must("pull", "-q", "--rebase", "origin", BRANCH, cwd=clone, token=mine.token)
    assert OUTCOMES[(await push(clone, mine)).code] == "done"
    assert "Theirs" in await must("log", "--format=%s", BRANCH, cwd=origin)
    assert await head(origin) == await head(clone)


async def test_a_server_that_died_in_between(clone, mine, origin, world):
    """The origin had taken the push, the mirror had not yet: pushing again finds it done, and the mirror follows."""
    await must("push", "-q", str(origin), BRANCH, cwd=clone)
    assert await head(mirror_of(world)) == ""
    said = await push(clone, mine, "--porcelain")
    assert OUTCOMES[said.code] == "done"
    assert await head(mirror_of(world)) == await head(origin) == await head(clone)


async def test_what_the_mirror_alone_has_is_nothing(clone, mine, origin, world):
    """A branch that the origin lacks is gone with the next request, and a push brings it there."""
    await must("fetch", "-q", str(clone), f"{BRANCH}:{BRANCH}", cwd=mirror_of(world))
    assert OUTCOMES[(await push(clone, mine)).code] == "done"
    assert await head(origin) == await head(clone)


async def test_only_the_own_branch(clone, mine, origin):
    """The rules of the door are those for any repository: another branch is refused, and nothing reaches the origin."""
    before = await must("for-each-ref", cwd=origin)
    for refspec in ("HEAD:main", "HEAD:release", ":main", "HEAD:refs/tags/v1"):
        said = await run("push", "-q", "origin", refspec, cwd=clone, token=mine.token)
        assert "403" in said.err
    await push(clone, mine)
    pushed = await head(clone)
    await must("commit", "-q", "--amend", "-m", "Other work", cwd=clone)
    assert OUTCOMES[(await push(clone, mine, "--force")).code] == "refused"
    after = await must("for-each-ref", cwd=origin)
    assert set(after.splitlines()) - set(before.splitlines()) == {f"{pushed} commit\trefs/heads/{BRANCH}"}


async def test_what_the_origin_deletes_is_gone(clone, mine, origin):
    """Branches and tags come and go with the origin's."""
    await must("tag", "v1", "main", cwd=origin)
    assert "refs/tags/v1" in await must("ls-remote", "origin", cwd=clone, token=mine.token)
    await must("tag", "-d", "v1", cwd=origin)
    await must("branch", "-D", "release", cwd=origin)
    listed = await must("ls-remote", "origin", cwd=clone, token=mine.token)
    assert "refs/heads/main" in listed
    assert "v1" not in listed
    assert "release" not in listed


@pytest.mark.parametrize(("how", "passes"), [("away", True), ("denied", False)])
async def test_an_origin_that_does_not_answer(clone, mine, ssh, how, passes):
    """Git is told why, and a worker knows whether waiting helps."""
    with ssh.being(how):
        said = await run("fetch", "origin", cwd=clone, token=mine.token)
    failed = GitFailed("fetch", said.err)
    assert ("Connection refused" if passes else "Permission denied") in said.err
    assert (failed.away, failed.denied) == (passes, not passes)


async def test_an_origin_that_is_silent(clone, mine, ssh, monkeypatch):
    """It is waited for so long and no longer, and no process of it is left."""
    monkeypatch.setattr(mirrors, "FETCH_SECONDS", 0.3)
    with ssh.being("silent"):
        said = await run("fetch", "origin", cwd=clone, token=mine.token)
    assert "503" in said.err
    children = psutil.Process().children(recursive=True)
    assert [child for child in children if "sleep" in child.name()] == []


async def test_who_the_server_is_to_ssh(clone, ssh):
    """Nobody is asked, no unknown host is trusted, and nothing of the server is lent to the other side."""
    for word in ("BatchMode=yes", "StrictHostKeyChecking=yes", "ForwardAgent=no", "ControlMaster=no"):
        assert all(word in line for line in ssh.asked)


async def test_where_programs_cannot_run(clone, mine, origin, world):
    """Git would pass over the hook and keep the push here; it is refused instead."""
    (mirror_of(world) / "hooks" / "pre-receive").chmod(0o600)
    assert "503" in (await push(clone, mine)).err
    assert await head(origin) == await head(mirror_of(world)) == ""


async def test_a_lock_that_a_dead_machine_left(clone, mine, origin, world):
    """It is taken away once nobody can hold it any more."""
    lock = mirror_of(world) / "refs" / "heads" / "new.lock"
    lock.touch()
    await must("branch", "new", "main", cwd=origin)
    assert "503" in (await run("fetch", "origin", cwd=clone, token=mine.token)).err
    os.utime(lock, (0, time.time() - mirrors.FETCH_SECONDS - 1))
    await must("fetch", "origin", cwd=clone, token=mine.token)


async def test_many_ask_at_once(clone, mine, ssh):
    """One fetch answers all who came before it began."""
    before = len(ssh.asked)
    asking = [run("ls-remote", "origin", cwd=clone, token=mine.token) for _ in range(FLOOD)]
    assert any(said.code == 0 for said in await asyncio.gather(*asking))
    assert len(ssh.asked) - before < FLOOD


async def test_another_repository_another_mirror(world, grace, mine, daemon, tmp_path):
    """A project that is given another repository keeps nothing of the first one."""
    await make_repository(tmp_path / "else" / "mars.git")
    await must("ls-remote", door(world), cwd=tmp_path, token=mine.token)
    first = mirror_of(world)
    project = (await mine.read()).project_id
    given = {"cloneUrl": f"git://{daemon}/else/mars.git"}
    await grace.do("updateProject", "project { id }", projectId=ids.encode("project", project), repository=given)
    listed = await must("ls-remote", door(world), "main", cwd=tmp_path, token=mine.token)
    assert listed.split()[0] == await head(tmp_path / "else" / "mars.git", "main")
    assert mirror_of(world) != first


async def test_an_admin_vouched_for_it(world, clone, mine, grace):
    """Without that word nothing is opened any more."""
    async with world.server.db.writing() as session:
        await session.execute(update(Project).values(repository_vouched=False))
    said = await run("fetch", "origin", cwd=clone, token=mine.token)
    assert "403" in said.err
    assert "No admin" in said.err
