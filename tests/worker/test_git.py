"""Git and the edits: branches, credentials, conflicts with others, and exact diffs of whatever changed."""

import asyncio
import json
import os

import pytest

from tests.servers import until
from tests.worker import box, plane, remote
from tests.worker.box import BRANCH
from worker import git, orders
from worker.edits import Edits
from worker.server import credential


@pytest.fixture
async def origin(tmp_path):
    async with remote.serving(tmp_path) as made:
        yield made


@pytest.fixture
def repository(tmp_path, server, origin):
    return made(tmp_path / "home", server, REPO_URL=origin.url)


def made(home, server, said=None, **more):
    told = orders.Orders(box.environment(home, server, "http://127.0.0.1:1", "x", **more))
    told.state.mkdir(parents=True)
    said = [] if said is None else said
    return git.Repository(told, git.environment(told), said.append)


async def write(repository, **files):
    for name, text in files.items():
        (repository.folder / name).write_text(text)


async def test_branch_from_base(repository, origin):
    """A new branch begins at the base branch, and is pushed only once it has something."""
    first = origin.commit({"a": "1\n"})
    assert await repository.prepare() == first
    assert not await repository.push()
    assert await repository.commit("nothing") is None
    await write(repository, a="2\n")
    commit, files = await repository.commit("title")
    assert files == ["a"]
    assert await repository.push()
    assert origin.head(BRANCH) == commit
    assert not await repository.push()


async def test_branch_goes_on(repository, origin):
    """A branch that an earlier attempt pushed is gone on with; its base stays where it began."""
    first = origin.commit({"a": "1\n"})
    origin.git("branch", BRANCH, "main")
    second = origin.commit({"b": "2\n"}, BRANCH)
    assert await repository.prepare() == first
    assert await repository.head() == second


async def test_empty_remote(repository, origin):
    """In an empty repository the branch has no beginning, and the first push makes it."""
    assert await repository.prepare() is None
    await write(repository, a="1\n")
    await repository.commit("title")
    assert await repository.push()
    assert origin.files(BRANCH) == ["a"]


async def test_no_repository(tmp_path, server):
    """Without a repository there is an empty one, and nothing is pushed."""
    repository = made(tmp_path / "home", server)
    assert await repository.prepare() is None
    await write(repository, a="1\n")
    assert await repository.commit("title")
    assert not await repository.push()


async def test_missing_base(repository, origin):
    """A base branch that the remote lacks is named."""
    origin.commit({"a": "1\n"}, "trunk")
    with pytest.raises(git.GitFailed, match="no branch main") as refused:
        await repository.prepare()
    assert not refused.value.denied


async def test_others_have_pushed(repository, origin):
    """What others pushed on the branch meanwhile stays, and the work comes on top."""
    origin.commit({"a": "1\n"})
    origin.git("branch", BRANCH, "main")
    await repository.prepare()
    await write(repository, b="mine\n")
    await repository.commit("title")
    theirs = origin.commit({"c": "theirs\n"}, BRANCH)
    assert await repository.push()
    assert origin.files(BRANCH) == ["a", "b", "c"]
    assert origin.head(f"{BRANCH}~1") == theirs


async def test_conflict(repository, origin):
    """The same place changed by others is told, and neither side is overwritten."""
    origin.commit({"a": "1\n"})
    origin.git("branch", BRANCH, "main")
    await repository.prepare()
    await write(repository, a="mine\n")
    mine = (await repository.commit("title"))[0]
    theirs = origin.commit({"a": "theirs\n"}, BRANCH)
    with pytest.raises(git.GitFailed, match="the same places"):
        await repository.push()
    assert (await repository.head(), origin.head(BRANCH)) == (mine, theirs)


@pytest.mark.parametrize(
    ("status", "denied", "said"),
    [(401, True, "Authentication"), (403, True, "403"), (404, True, "not found"), (413, False, "413")],
)
async def test_refusals(repository, origin, status, denied, said):
    """What a person has to mend ends the try at once, in git's own words. A host says 404 also of what it hides."""
    origin.status = status
    with pytest.raises(git.GitFailed, match=said) as refused:
        await repository.prepare()
    assert (refused.value.denied, refused.value.away) == (denied, False), refused.value.said


async def test_remote_that_is_away(repository, origin):
    """A remote that fails for a while is asked again."""
    origin.commit({"a": "1\n"})
    origin.status = 503
    preparing = asyncio.create_task(repository.prepare())
    await until(lambda: len(origin.asked) > 1)
    origin.status = 0
    await preparing
    assert (repository.folder / "a").exists()


async def test_remote_that_stays_away(tmp_path, server, origin, monkeypatch):
    """Each try is told in git's own words; when it has lasted too long the last ones are the reason."""
    monkeypatch.setattr(git, "LONGEST_ABSENCE_SECONDS", 1.0)
    said = []
    origin.status = 503
    with pytest.raises(git.GitFailed, match="error: 503") as refused:
        await made(tmp_path / "home", server, said, REPO_URL=origin.url).prepare()
    assert refused.value.away
    assert len(said) >= 2
    for number, line in enumerate(said, 1):
        assert line.startswith("git fetch: fatal: unable to access")
        assert f"(try {number}, the next in " in line


@pytest.mark.parametrize(
    ("said", "away"),
    [
        ("fatal: unable to access 'https://h/x/': Could not resolve host: h", True),
        ("fatal: unable to access 'https://h/x/': CONNECT tunnel failed, response 502", True),
        ("fatal: unable to access 'https://h/x/': The requested URL returned error: 429", True),
        ("error: RPC failed; HTTP 413 curl 22 The requested URL returned error: 413", False),
        ("error: RPC failed; curl 56 Recv failure: Connection reset by peer", True),
        ("fatal: unable to access 'https://h/x/': SSL certificate problem: self-signed certificate", False),
        ("fatal: unable to access 'https://ada:secret@h/x/': Could not resolve host: h", True),
        ("fatal: unable to access 'https://h/x/': transfer closed with outstanding read data remaining", True),
        ("fatal: unable to access 'https://h/x/': GnuTLS recv error (-54): Error in the pull function.", True),
        ("fatal: unable to access 'https://h/x/': The TLS connection was non-properly terminated.", True),
        ("fatal: unable to access 'https://h/x/': OpenSSL SSL_connect: SSL_ERROR_SYSCALL in connection to h", True),
        ("fatal: unable to access 'https://h/x/': error:0A000126:SSL routines::unexpected eof while reading", True),
        ("error: 1 bytes of body are still expected\nHTTP/2 stream 5 was not closed cleanly: CANCEL (err 8)", True),
        ("fatal: couldn't find remote ref nowhere", False),
    ],
)
def test_what_is_worth_another_try(said, away):
    """A host that does not answer, or is busy, is; one that refuses is not. Nobody's password is in the sentence."""
    failed = git.GitFailed("fetch", said)
    assert (failed.away, failed.denied) == (away, False)
    assert "secret" not in str(failed) + failed.said


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ("", "git push: it failed"),
        ("one\nhint: two\nfatal: three\nhint: four\n", "git push: fatal: three"),
        (
            "remote: no\nPushing\nremote: really\nerror: refused\n\n",
            "git push: remote: no remote: really error: refused",
        ),
    ],
)
def test_sentence(said, sentence):
    """Git's own last one that is no hint, after what the remote had to say."""
    assert str(git.GitFailed("push", said)) == sentence


async def test_repository_on_the_port_of_the_door(tmp_path, server, origin):
    """Whether a repository is behind the server's own door is what the server says, whatever its address looks like."""
    origin.commit({"a": "1\n"})
    told = {"REPO_URL": f"{server.url}/project.git", "http_proxy": origin.address, "no_proxy": "127.0.0.1"}
    elsewhere = made(tmp_path / "home", server, **told)
    await elsewhere.prepare()
    assert (elsewhere.folder / "a").exists()
    asked = len(origin.asked)
    with pytest.raises(git.GitFailed, match="not found"):  # the server of this test has no such door
        await made(tmp_path / "other", server, OMOI_GIT_DOOR=1, **told).prepare()
    assert len(origin.asked) == asked


async def test_hooks_do_not_run(repository, origin):
    """What stands in the repository's hooks has no part in the worker's commits."""
    origin.commit({"a": "1\n"})
    await repository.prepare()
    hook = repository.folder / ".git/hooks/prepare-commit-msg"
    hook.write_text("#!/bin/sh\nexit 1\n")
    hook.chmod(0o755)
    await write(repository, a="2\n")
    assert await repository.commit("title")


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1:1"])
async def test_credential_for_no_other_host(server, host):
    """Another host, such as a submodule's, gets nothing."""
    environ = {"REPO_URL": "https://git.example/a.git", "CALLBACK_URL": server.url, "OMOI_SANDBOX_TOKEN": plane.TOKEN}
    assert await credential(f"protocol=https\nhost={host}\n", environ) == ""
    assert await credential("protocol=http\nhost=git.example\n", environ) == ""
    assert server.operations == []


@pytest.fixture
async def edits(repository, origin, tmp_path):
    origin.commit({"a.txt": "one\ntwo\nthree\n", "gone.txt": "gone\n", ".gitignore": "*.log\n"})
    base = await repository.prepare()
    made = Edits(repository, tmp_path / "home/.omoi/shadow")
    await made.start(base)
    return made


async def seen(edits, path=None):
    return await edits.compare(path)


async def test_edit(edits, repository):
    """An edit is told as the exact difference to before, with its net against the base when that differs."""
    await write(repository, **{"a.txt": "one\n2\nthree\n"})
    [first] = await seen(edits, str(repository.folder / "a.txt"))
    assert (first["kind"], first["additions"], first["deletions"]) == ("MODIFIED", 1, 1)
    assert "net" not in first
    await write(repository, **{"a.txt": "one\n2\n3\n"})
    [second] = await seen(edits, "a.txt")
    assert "-three\n+3" in second["diff"]
    assert "-two\n-three\n+2\n+3" in second["net"]
    await write(repository, **{"a.txt": "one\ntwo\nthree\n"})
    [third] = await seen(edits)
    assert third["net"] == ""


async def test_rename_and_delete(edits, repository):
    """A renamed file is told with both names; deleting it later still tells that the first one is gone."""
    (repository.folder / "a.txt").rename(repository.folder / "b.txt")
    (repository.folder / "gone.txt").unlink()
    renamed, deleted = await seen(edits)
    assert (renamed["kind"], renamed["previousPath"], renamed["path"]) == ("RENAMED", "a.txt", "b.txt")
    assert (deleted["kind"], deleted["deletions"]) == ("DELETED", 1)
    (repository.folder / "b.txt").unlink()
    [gone] = await seen(edits)
    assert gone["kind"] == "DELETED"
    assert "--- a/a.txt" in gone["net"]


async def test_binary_and_odd_names(edits, repository):
    """Bytes that are no text, names with spaces, and a file that becomes a link are told like the rest."""
    (repository.folder / "bin dä\t.dat").write_bytes(bytes(range(256)))
    (repository.folder / "gone.txt").unlink()
    (repository.folder / "gone.txt").symlink_to("a.txt")
    binary, link = await seen(edits)
    assert binary["binary"]
    assert binary["path"] == "bin dä\t.dat"
    assert (link["path"], link["kind"], link["binary"]) == ("gone.txt", "MODIFIED", False)
    assert link["diff"].count("diff --git ") == 2


async def test_what_is_not_tracked(edits, repository, tmp_path):
    """Ignored files, files outside and byte code are no changes; the repository's own index knows nothing of ours."""
    await write(repository, **{"x.log": "noise"})
    (repository.folder / "__pycache__").mkdir()
    (repository.folder / "__pycache__/a.pyc").write_text("x")
    (tmp_path / "outside").write_text("x")
    assert await seen(edits, str(repository.folder / "x.log")) == []
    assert await seen(edits, str(tmp_path / "outside")) == []
    assert await seen(edits) == []
    await write(repository, **{"new.txt": "x\n"})
    assert len(await seen(edits)) == 1
    assert (await repository.run("diff", "--cached", "--name-only")) == ""


async def test_tree_of_untracked_files(edits, repository):
    """The hash of the working tree's state knows files that were never added, and each of their contents."""
    trees = [edits.tree]
    for text in ("one\n", "two\n"):
        await write(repository, **{"new.txt": text})
        await seen(edits)
        trees.append(edits.tree)
    (repository.folder / "new.txt").unlink()
    await seen(edits)
    assert len(set(trees)) == 3
    assert edits.tree == trees[0]


async def test_repository_inside(edits, repository):
    """One that has no commit yet, which git cannot add, keeps nothing else back."""
    await repository.run("init", "-q", "inside")
    await write(repository, **{"new.txt": "x\n"})
    assert [edit["path"] for edit in await seen(edits)] == ["new.txt"]
    assert (await repository.commit("title"))[1] == ["new.txt"]


async def test_restore(edits, repository, tmp_path, server, origin):
    """Recorded edits come back in a fresh clone, whatever they were, except where the branch has moved on."""
    base = await repository.head()
    await write(repository, **{"a.txt": "one\n2\nthree\n", "new.txt": "new\n"})
    (repository.folder / "gone.txt").unlink()
    (repository.folder / "data").write_bytes(bytes(range(256)))
    changes = await edits.compare()
    recorded = tmp_path / "edits.json"
    recorded.write_text(json.dumps({"base": base, "changes": [{"net": each["diff"], **each} for each in changes]}))
    origin.git("branch", BRANCH, "main")
    origin.commit({"a.txt": "somebody else's\n"}, BRANCH)
    other = made(tmp_path / "other", server, REPO_URL=origin.url)
    fresh = Edits(other, tmp_path / "other/.omoi/shadow")
    await fresh.start(await other.prepare())
    assert await fresh.restore(recorded) == ["a.txt"]
    assert sorted(path.name for path in other.folder.iterdir()) == [".git", ".gitignore", "a.txt", "data", "new.txt"]
    assert (other.folder / "data").read_bytes() == bytes(range(256))
    assert (other.folder / "a.txt").read_text() == "somebody else's\n"


async def test_command_that_says_too_much(tmp_path, monkeypatch):
    """A command that would fill the disk is ended, and so is one that lasts too long; nothing of them stays."""
    monkeypatch.setattr(git, "LARGEST_OUTPUT_BYTES", 1000)
    told = {"cwd": tmp_path, "env": dict(os.environ)}
    loud = await git.command("bash", "-c", "yes", seconds=30, **told)
    assert "MiB" in loud.ended
    assert loud.code == -9
    slow = await git.command("bash", "-c", "sleep 600 & sleep 600", seconds=0.1, **told)
    assert slow.ended.startswith("It was ended after")
