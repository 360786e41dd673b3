"""Git for sandboxes: the real git through the server's door, one branch to write, and credentials for one host only."""

import asyncio
import base64
import dataclasses
import os
import shutil
from asyncio.subprocess import PIPE
from dataclasses import dataclass

import httpx
import pytest
import uvloop

from app import git, git_door, remotes
from app.enums import CredentialKind, GitOperation
from app.errors import RepositoryRefused
from app.models import Project
from app.settings import GitCredential, load
from tests import world as w
from tests.app.claimed import box
from tests.servers import until

BRANCH = "feature/1-land-on-the-moon"
OUTCOMES = {0: "done", 1: "refused", 128: "refused"}
ADVERTISED = "info/refs?service=git-upload-pack"
BIG_BYTES = 3 << 20  # more than git sends in one piece


@dataclass
class Said:
    code: int
    out: str
    err: str


async def run(*arguments, cwd, token=None):
    """Git as a worker calls it: its secrets come from a helper, and nothing from this machine's configuration."""
    config = {"user.name": "Ada", "user.email": "ada@example.com", "init.defaultBranch": "main"}
    if token:
        config["credential.helper"] = '!f() { echo "username=sandbox"; echo "password=$TOKEN"; }; f'
    env = {
        "PATH": os.environ["PATH"],
        "HOME": "/nonexistent",
        "TOKEN": token or "",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_COUNT": str(len(config)),
    }
    for place, (key, value) in enumerate(config.items()):
        env |= {f"GIT_CONFIG_KEY_{place}": key, f"GIT_CONFIG_VALUE_{place}": value}
    process = await asyncio.create_subprocess_exec("git", *arguments, cwd=cwd, env=env, stdout=PIPE, stderr=PIPE)
    out, err = await process.communicate()
    return Said(process.returncode, out.decode().strip(), err.decode())


async def must(*arguments, **how):
    said = await run(*arguments, **how)
    assert said.code == 0, said.err
    return said.out


async def make_repository(folder):
    """A bare one with one commit on main and one on release."""
    source = folder.with_name("source")
    source.mkdir(parents=True)
    await must("init", "-q", cwd=source)
    (source / "README.md").write_text("one\n")
    (source / "NAME").write_text(folder.name)
    await must("add", "-A", cwd=source)
    await must("commit", "-qm", "One", cwd=source)
    await must("branch", "release", cwd=source)
    await must("clone", "-q", "--bare", str(source), str(folder), cwd=source)


@pytest.fixture
def settings(tmp_path):
    return w.Settings(data=tmp_path, orchestrator_enabled=False)


@pytest.fixture(scope="module")
async def original(tmp_path_factory):
    folder = tmp_path_factory.mktemp("original") / "moon.git"
    await make_repository(folder)
    return folder


@pytest.fixture
def repository(original, tmp_path):
    folder = tmp_path / "repositories"
    shutil.copytree(original.parent, folder)
    return folder / "moon.git"


@pytest.fixture
async def ada(world):
    """An admin: what lies on the server is theirs to link."""
    return await world.account("ada", admin=True)


@pytest.fixture
async def project(ada, repository):
    return await w.project(ada, repository={"cloneUrl": str(repository)})


@pytest.fixture
async def mine(ada, project):
    return await box(ada, project, branch=BRANCH)


@pytest.fixture
async def clone(world, mine, tmp_path):
    """A clone on the sandbox's branch, with a commit of its own."""
    folder = tmp_path / "clone"
    await must("clone", "-q", door(world), str(folder), cwd=tmp_path, token=mine.token)
    await must("switch", "-qc", BRANCH, cwd=folder)
    (folder / "big").write_bytes(os.urandom(BIG_BYTES))
    await must("add", "-A", cwd=folder)
    await must("commit", "-qm", "Work", cwd=folder)
    return folder


def door(world):
    return f"{world.url}{git.DOOR}"


def basic(token, name="sandbox"):
    return {"authorization": f"Basic {base64.b64encode(f'{name}:{token}'.encode()).decode()}"}


async def refs(repository):
    return await must("for-each-ref", "--format=%(refname) %(objectname)", cwd=repository)


async def test_clone_and_push(clone, mine, repository):
    """A worker clones, pushes its branch in more than one piece, and pushes what it does later."""
    await must("push", "-q", "origin", BRANCH, cwd=clone, token=mine.token)
    await must("commit", "-q", "--allow-empty", "-m", "More", cwd=clone)
    await must("push", "-q", "origin", BRANCH, cwd=clone, token=mine.token)
    assert await must("rev-parse", BRANCH, cwd=repository) == await must("rev-parse", "HEAD", cwd=clone)
    assert await must("show", f"{BRANCH}:README.md", cwd=repository) == "one"


@pytest.mark.parametrize(
    "refspec",
    [
        "HEAD:main",
        "HEAD:release",
        "HEAD:feature/2-other",
        "HEAD:refs/tags/v1",
        f"{BRANCH} HEAD:feature/2-other",
        ":main",
    ],
)
async def test_other_refs_are_refused(clone, mine, repository, refspec):
    """Another branch, the default one, a tag, a deletion, also beside the sandbox's own branch: nothing changes."""
    before = await refs(repository)
    said = await run("push", "-q", "origin", *refspec.split(), cwd=clone, token=mine.token)
    assert OUTCOMES[said.code] == "refused"
    assert "403" in said.err
    assert await refs(repository) == before


async def test_own_branch_only_grows(clone, mine, repository):
    """What was pushed can neither be rewritten nor deleted."""
    await must("push", "-q", "origin", BRANCH, cwd=clone, token=mine.token)
    before = await refs(repository)
    await must("commit", "-q", "--amend", "-m", "Other work", cwd=clone)
    forced = await run("push", "-q", "--force", "origin", BRANCH, cwd=clone, token=mine.token)
    deleted = await run("push", "-q", "origin", f":{BRANCH}", cwd=clone, token=mine.token)
    assert OUTCOMES[forced.code] == OUTCOMES[deleted.code] == "refused"
    assert await refs(repository) == before


async def test_default_branch_is_nobodys(clone, mine, repository):
    """A sandbox whose branch is the project's own, or that has none, pushes nothing."""
    for branch in ("main", None):
        await mine.write(branch=branch)
        said = await run("push", "-q", "origin", "HEAD:main", cwd=clone, token=mine.token)
        assert "403" in said.err
    assert await must("rev-parse", "main", "release", cwd=repository) == "\n".join([await first(repository)] * 2)


async def first(repository):
    return await must("rev-list", "--max-parents=0", "main", cwd=repository)


async def test_hooks_do_not_run(clone, mine, repository, tmp_path):
    """A hook of the repository is a program, and no program of it runs on the server."""
    for name in ("pre-receive", "update", "post-receive", "post-update", "reference-transaction"):
        hook = repository / "hooks" / name
        hook.write_text(f"#!/bin/sh\necho ran > {tmp_path}/ran\nexit 1\n")
        hook.chmod(0o755)
    await must("push", "-q", "origin", BRANCH, cwd=clone, token=mine.token)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("token", [None, "wrong", "omoi_sbx_" + "a" * 32 + "_" + "a" * 32])
async def test_wrong_token(world, mine, token):
    """Without a token that counts, git is asked for one."""
    answer = await world.http.get(f"{git.DOOR}/{ADVERTISED}", headers=basic(token) if token else {})
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Basic ")


async def test_people_use_another_door(world, ada, mine):
    """A person's token is no sandbox's."""
    answer = await world.http.get(f"{git.DOOR}/{ADVERTISED}", headers=basic(ada.token))
    assert answer.status_code == 403


async def test_ended_sandbox(world, mine, tmp_path):
    """With its sandbox a token has ended."""
    await mine.end()
    said = await run("clone", "-q", door(world), "x", cwd=tmp_path, token=mine.token)
    assert "Authentication failed" in said.err


async def test_own_project_only(world, ada, mine, tmp_path):
    """Each sandbox finds its own project's repository, and one of a project without any finds nothing."""
    await make_repository(tmp_path / "repositories" / "else" / "mars.git")
    other = await w.project(ada, repository={"cloneUrl": f"file://{tmp_path}/repositories/else/mars.git"})
    there, nowhere = await box(ada, other), await box(ada, await w.project(ada))
    heads = [await run("ls-remote", door(world), "main", cwd=tmp_path, token=one.token) for one in (mine, there)]
    assert [head.code for head in heads] == [0, 0]
    assert heads[0].out != heads[1].out
    assert "403" in (await run("ls-remote", door(world), cwd=tmp_path, token=nowhere.token)).err


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "HEAD"),
        ("GET", "config"),
        ("GET", "objects/info/packs"),
        ("GET", "info/refs"),
        ("GET", "info/refs?service=git-upload-archive"),
        ("GET", "info/refs?service=git-upload-pack&service=git-receive-pack"),
        ("POST", "info/refs?service=git-upload-pack"),
        ("POST", "git-upload-archive"),
        ("POST", "x/%2e%2e/git-upload-pack"),
        ("GET", "../../root.key"),
        ("GET", "%2e%2e/%2e%2e/root.key"),
    ],
)
async def test_only_the_smart_protocol(world, mine, method, path):
    """No file of the repository, nor beside it, can be asked for."""
    url = httpx.URL(world.url, raw_path=f"{git.DOOR}/{path}".encode())
    answer = await world.http.request(method, url, headers=basic(mine.token))
    assert answer.status_code == 404


@pytest.mark.parametrize("encoding", ["gzip", "identity", "x-gzip"])
async def test_compressed_push(world, mine, encoding):
    """A push whose commands could not be read here is not passed on."""
    headers = {
        **basic(mine.token),
        "content-encoding": encoding,
        "content-type": "application/x-git-receive-pack-request",
    }
    answer = await world.http.post(f"{git.DOOR}/git-receive-pack", content=b"0000", headers=headers)
    assert answer.status_code == 415


async def test_client_that_leaves(world, clone, mine, repository):
    """A push that breaks off leaves no process and nothing of itself behind."""
    headers = "".join(f"{name}: {value}\r\n" for name, value in basic(mine.token).items())
    port = httpx.URL(world.url).port
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    head = await must("rev-parse", "HEAD", cwd=clone)
    line = f"{'0' * 40} {head} refs/heads/{BRANCH}\0 report-status".encode()
    body = b"%04x%s0000PACK\x00\x00\x00\x02\x00\x00\x00\x09" % (len(line) + 4, line)
    writer.write(
        f"POST {git.DOOR}/git-receive-pack HTTP/1.1\r\nhost: x\r\n{headers}"
        f"content-type: application/x-git-receive-pack-request\r\ncontent-length: 100000\r\n\r\n".encode()
        + body
    )
    await until(lambda: list(repository.glob("objects/tmp_objdir-incoming-*")))
    writer.close()
    await until(lambda: not list(repository.glob("objects/tmp_objdir-incoming-*")))
    assert BRANCH not in await refs(repository)


def named(clone_url, *, vouched=True):
    return Project(clone_url=clone_url, repository_vouched=vouched, default_branch="main")


@pytest.mark.parametrize("url", ["https://git.example.com/a/b.git", "http://127.0.0.1:3000/a.git"])
def test_web_addresses_stay(settings, url):
    """What can be reached by the web is cloned from there."""
    assert git.remote_url(settings, named(url), "http://server") == url


async def test_local_address_becomes_the_door(settings, repository):
    """A path of the server means the door, with and without file://; no repository means none."""
    for url in (str(repository), f"file://{repository}", f"file://{str(repository).replace('moon', '%6doon')}"):
        assert git.remote_url(settings, named(url), "http://server/") == "http://server/git/repository.git"
    assert git.remote_url(settings, named(None), "http://server") is None


async def test_worktrees_have_their_git_folder(settings, repository):
    """Of a repository with a working tree, its git folder is what is served."""
    tree = repository.with_name("source")
    assert remotes.folder(settings, tree) == tree / ".git"


DISTANT = ["ssh://git@example.com/a.git", "git@example.com:a.git", "git://example.com/a.git"]


@pytest.mark.parametrize("url", DISTANT)
def test_hosts_of_the_operator(settings, url):
    """What only the server can reach is behind its door, if its host is listed."""
    with pytest.raises(RepositoryRefused, match="OMOI_GIT_HOSTS"):
        git.remote_url(settings, named(url), "http://server")
    listing = dataclasses.replace(settings, git_hosts=("example.com",))
    assert git.remote_url(listing, named(url), "http://server") == "http://server/git/repository.git"


async def test_nobody_vouched_for_it(settings, repository):
    """What no admin has linked is not opened with the server's rights, at the launch either."""
    listing = dataclasses.replace(settings, git_hosts=("example.com",))
    for url in (str(repository), *DISTANT):
        with pytest.raises(RepositoryRefused, match="No admin has linked"):
            git.remote_url(listing, named(url, vouched=False), "http://server")


async def test_folders_that_are_not_allowed(settings, repository, tmp_path):
    """A path outside of the listed folders is refused, however it is written and whatever it is linked to."""
    outside = tmp_path / "outside.git"
    await make_repository(outside / "x.git")
    inside = repository.parent
    (inside / "link.git").symlink_to(outside / "x.git")
    (inside / "tree").mkdir()
    (inside / "tree" / ".git").symlink_to(outside / "x.git")
    (inside / "empty").mkdir()
    for path in (outside / "x.git", inside / "link.git", inside / "tree", inside / ".." / "outside.git" / "x.git"):
        with pytest.raises(RepositoryRefused, match="OMOI_REPOSITORY_FOLDERS"):
            remotes.folder(settings, path)
    for path in (inside / "empty", inside / "missing.git", inside):
        with pytest.raises(RepositoryRefused, match="no git repository"):
            remotes.folder(settings, path)


def test_folders_of_the_operator(repository, tmp_path):
    """The setting replaces the default folder."""
    env = {"OMOI_DATA": str(tmp_path / "data"), "OMOI_REPOSITORY_FOLDERS": f"{tmp_path}/other, {repository.parent}"}
    settings = load(env=env).settings
    assert remotes.folder(settings, repository) == repository
    with pytest.raises(RepositoryRefused):
        remotes.folder(w.Settings(data=tmp_path / "data"), repository)


class TestCredential:
    @pytest.fixture
    def settings(self, tmp_path):
        known = (
            GitCredential("https://git.example.com", "omoi", "git-password"),
            GitCredential("https://github.com", "omoi", "hub-password"),
        )
        return w.Settings(data=tmp_path, orchestrator_enabled=False, git_credentials=known)

    @pytest.fixture
    def issued(self, world, ada):
        async def issue(account=ada, **repository):
            project = await w.project(account, repository=repository or None)
            sandbox = await (await box(account, project)).read()
            async with world.server.db.writing() as session:
                return await git.credential(session, world.server.keys, world.settings, sandbox, GitOperation.PUSH)

        return issue

    async def test_of_the_user(self, ada, issued):
        """For GitHub it is the token of who made the task; the operator's counts for those without one."""
        assert (await issued(owner="omoi", name="moon")).password == "hub-password"
        await ada.do(
            "setCredential", "credential { kind }", kind=CredentialKind.GITHUB.name, secret="ghp_of_ada_herself"
        )
        for repository in ({"owner": "omoi", "name": "moon"}, {"cloneUrl": "https://github.com/omoi/moon.git"}):
            found = await issued(**repository)
            assert (found.username, found.password) == ("x-access-token", "ghp_of_ada_herself")

    async def test_of_the_operator(self, issued):
        """The operator's counts for exactly its own origin."""
        assert (await issued(cloneUrl="https://git.example.com/a/b.git")).password == "git-password"
        assert (await issued(cloneUrl="https://GIT.example.com:443/b.git")).password == "git-password"

    async def test_of_the_operator_for_what_an_admin_linked(self, bob, issued):
        """Others open a repository by a credential of their own, and by no other."""
        assert await issued(bob, owner="omoi", name="moon") is None
        await bob.do("setCredential", "credential { kind }", kind="GITHUB", secret="ghp_of_bob_himself")
        assert (await issued(bob, owner="omoi", name="moon")).password == "ghp_of_bob_himself"

    @pytest.mark.parametrize(
        "url",
        [
            "http://git.example.com/a.git",
            "https://git.example.com:8443/a.git",
            "https://git.example.com.evil.example/a.git",
            "https://agit.example.com/a.git",
            "https://evil.example/git.example.com/a.git",
            "https://git.example.com\\.evil.example/a.git",
            "https://github.com.evil.example/a/b.git",
            "http://github.com/a/b.git",
        ],
    )
    async def test_of_no_other_host(self, ada, issued, url):
        """What belongs to one host is never given to another, however alike the two are written."""
        await ada.do("setCredential", "credential { kind }", kind="GITHUB", secret="ghp_of_ada_herself")
        assert await issued(cloneUrl=url) is None

    async def test_for_the_door(self, world, issued, repository):
        """The server's own door opens to the sandbox's token, for as long as the sandbox may live."""
        found = await issued(cloneUrl=str(repository))
        assert found.username == "sandbox"
        sandbox_id, _ = world.server.keys.read_sandbox_token(found.password)
        async with world.server.db.reading() as session:
            assert (await git.place(session, sandbox_id)).project.clone_url == str(repository)
        assert found.expires_at is not None

    async def test_without_a_repository(self, issued):
        """Where there is nothing to open, nothing is issued."""
        assert await issued() is None


def test_git_that_reads_no_further_is_told_and_not_raised():
    """On the loop that servers run on too, which has a word of its own for a pipe that is closed."""

    async def scenario():
        process = await asyncio.create_subprocess_exec("true", stdin=asyncio.subprocess.PIPE)
        await process.wait()
        return [await git_door._given(process.stdin, b"x" * 100_000) for _ in range(20)][-1]

    assert uvloop.run(scenario()) is False
    assert asyncio.run(scenario()) is False
