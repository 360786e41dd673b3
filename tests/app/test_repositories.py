"""Repositories that people may name: as strict as git and GitHub, and no stricter."""

import random
import subprocess

import pytest

from app import auth, ids, repositories
from app.auth import Principal
from app.enums import PrincipalKind
from app.inputs import Checks
from app.models import Project
from app.settings import GitCredential, Settings

ADMIN = auth.SYSTEM
BOB = Principal(kind=PrincipalKind.USER, id=ids.new(), name="Bob")


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    """What an operator allows: a host for ssh, one with a port, a credential, and a repository in a folder."""
    data = tmp_path_factory.mktemp("data")
    subprocess.run(["git", "init", "-q", "--bare", data / "repositories" / "apollo.git"], check=True)
    known = GitCredential("https://git.example.com", "omoi", "secret")
    hosts = ("example.com", "other.example:2222", "[2001:db8::1]:2222")
    return Settings(data=data, git_hosts=hosts, git_credentials=(known,))


@pytest.fixture
def told(settings):
    """What is refused to somebody, and why."""

    def ask(principal, now=None, **given):
        checks = Checks()
        columns = repositories.checked(checks, given, settings=settings, principal=principal, now=now)
        return [error.message for error in checks.refusals], columns

    return ask


@pytest.fixture
def refused(settings):
    def places(**given):
        checks = Checks()
        repositories.checked(checks, given, settings=settings, principal=ADMIN)
        return [error.path for error in checks.refusals]

    return places


def test_branch_names_are_those_that_git_takes():
    """Compared with git itself, over names built from everything that its rules speak about."""
    chance = random.Random(3)
    pieces = [
        "a",
        "feature",
        "/",
        ".",
        "..",
        "-",
        "@",
        "{",
        "~",
        "^",
        ":",
        "?",
        "*",
        "[",
        "\\",
        " ",
        ".lock",
        "ü",
        "\x7f",
    ]
    names = [
        "".join(chance.choices(pieces, weights=[9, 9, 9, 3, *[1] * 15], k=chance.randint(1, 5))) for _ in range(300)
    ]
    for name in {"main", "HEAD", "@", "-", "a/-b", "HEAD/a", "a/HEAD", "release/1.0", *names}:
        if name == "@":  # git reads it as HEAD
            continue
        command = ["git", "check-ref-format", "--branch", name]
        taken = subprocess.run(command, capture_output=True, check=False, cwd="/").returncode == 0
        assert (repositories.BRANCH_NAME.fullmatch(name) is not None) is taken, name
    assert repositories.BRANCH_NAME.fullmatch("@") is None


@pytest.mark.parametrize(
    "url",
    [
        "https://example.com/apollo.git",
        "https://example.com:8443/group/sub/apollo",
        "ssh://git@example.com:22/apollo.git",
        "git@example.com:group/apollo.git",
        "git://example.com/apollo",
        "git://EXAMPLE.com:9418/apollo",
        "ssh://other.example:2222/~ada/apollo",
        "ssh://git@[2001:db8::1]:2222/apollo",
    ],
)
def test_every_address_that_git_clones_is_welcome(refused, url):
    """On the web, and by ssh and git on the hosts that the operator lists."""
    assert refused(clone_url=url) == []


def test_a_folder_that_the_operator_lists(refused, settings):
    """As a path and as an address of a file."""
    path = settings.data / "repositories" / "apollo.git"
    assert refused(clone_url=str(path)) == refused(clone_url=f"file://{path}") == []


@pytest.mark.parametrize(
    "url",
    [
        "https://ada:secret@example.com/apollo",
        "https://token@example.com/apollo",
        "https://a@b@example.com/apollo",
        "ssh://git:secret@example.com/apollo",
        "apollo",
        "../apollo",
        "ext::sh -c date",
        "-oProxyCommand@example.com:x",
        "--upload-pack=x",
        "ssh://-oProxyCommand=x/apollo",
        "ssh://git@-oProxyCommand=x/apollo",
        "ssh://example.com/-x",
        "git@example.com:-x",
        "ssh+git://example.com/x",
        "file://host/apollo",
        "https://example.com/a b",
        "https://",
        " ",
        "javascript:alert(1)",
        "https://example.com/" + "a" * 2_000,
    ],
    ids=lambda url: url[:30],
)
def test_an_address_with_a_password_or_of_nothing_is_refused(refused, url):
    """Also what git would take for an option or for a command."""
    assert refused(clone_url=url) == [["repository", "cloneUrl"]]


@pytest.mark.parametrize(
    ("owner", "name"), [("ada", "apollo"), ("a", ".github"), ("A-1", "_a.b-c"), ("ada_corp", "x" * 100)]
)
def test_names_that_github_has(refused, owner, name):
    assert refused(owner=owner, name=name) == []


@pytest.mark.parametrize(
    ("owner", "name", "places"),
    [
        ("-ada", "apollo", ["owner"]),
        ("ada/x", "apollo", ["owner"]),
        ("ada", "..", ["name"]),
        ("ada", "apollo.git", ["name"]),
        ("ada", "a/b", ["name"]),
        ("ada", "x" * 101, ["name"]),
        ("a b", "c d", ["owner", "name"]),
        ("ada@evil.example", "apollo\n", ["owner", "name"]),
    ],
)
def test_names_that_github_has_not(refused, owner, name, places):
    """Each is refused at its own place."""
    assert refused(owner=owner, name=name) == [["repository", place] for place in places]


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"owner": "ada"},
        {"name": "apollo"},
        {"owner": "ada", "name": "apollo", "clone_url": "https://example.com/a"},
        {"owner": "", "name": ""},
        {"owner": "ada", "clone_url": "https://example.com/a"},
    ],
)
def test_a_repository_is_named_in_one_way(refused, given):
    """Owner and name, or an address; neither both nor half of one."""
    assert refused(**given) == [["repository"]]


@pytest.mark.parametrize(
    ("url", "setting"),
    [
        ("ssh://git@unlisted.example/apollo", "OMOI_GIT_HOSTS"),
        ("git@unlisted.example:apollo", "OMOI_GIT_HOSTS"),
        ("git://unlisted.example/apollo", "OMOI_GIT_HOSTS"),
        ("ssh://git@example.com:2222/apollo", "OMOI_GIT_HOSTS"),
        ("ssh://git@other.example/apollo", "OMOI_GIT_HOSTS"),
        ("git://other.example/apollo", "OMOI_GIT_HOSTS"),
        ("/srv/apollo.git", "OMOI_REPOSITORY_FOLDERS"),
        ("file:///srv/apollo.git", "OMOI_REPOSITORY_FOLDERS"),
    ],
)
def test_what_could_not_be_launched_is_refused_early(told, url, setting):
    """The sentence names the setting that would allow it."""
    [message], _ = told(ADMIN, clone_url=url)
    assert setting in message


def test_a_folder_without_a_repository(told, settings):
    """Nothing there, or a bundle, to which no branch could be pushed."""
    folder = settings.data / "repositories"
    (folder / "apollo.bundle").touch()
    [[missing], _], [[bundle], _] = (told(ADMIN, clone_url=str(folder / name)) for name in ("none", "apollo.bundle"))
    assert "no git repository" in missing
    assert "is a file" in bundle


@pytest.mark.parametrize(
    "url",
    [
        "/srv/apollo.git",
        "file:///srv/apollo.git",
        "ssh://git@example.com/apollo.git",
        "git@unlisted.example:apollo.git",
        "git://example.com/apollo",
        "https://git.example.com/apollo.git",
        "https://GIT.example.com:443/apollo.git",
        *(f"http://{host}/a" for host in ("localhost:3000", "127.0.0.1", "127.1", "2130706433", "0x7f.1", "[::1]")),
        *(f"http://{host}/a" for host in ("10.1.2.3", "169.254.169.254", "[::ffff:10.0.0.1]", "git.localhost.")),
    ],
)
def test_the_servers_own_rights_are_the_admins_to_lend(told, url):
    """Whoever may not name it learns nothing of it: the sentence is the same whether it is there or not."""
    [message], columns = told(BOB, clone_url=url)
    assert message.startswith("Only an admin may link this repository: ")
    assert not columns["repository_vouched"]


@pytest.mark.parametrize("given", [{"owner": "ada", "name": "apollo"}, {"clone_url": "https://example.org/a.git"}])
def test_the_web_is_everybodys(told, given):
    """Anybody names what their own credential opens; only what an admin names is vouched for."""
    for principal in (BOB, ADMIN):
        refusals, columns = told(principal, **given)
        assert (refusals, columns["repository_vouched"]) == ([], principal is ADMIN)


def test_a_project_keeps_its_repository(told):
    """Others may say it again with another branch; saying it again makes nothing of what no admin named."""
    url = "git@example.com:apollo.git"
    for vouched in (True, False):
        now = Project(clone_url=url, repository_vouched=vouched)
        refusals, columns = told(BOB, now, clone_url=url, default_branch="trunk")
        assert (refusals, columns["repository_vouched"]) == ([], vouched)
    _, other = told(BOB, Project(clone_url=url, repository_vouched=True), clone_url="https://example.org/a")
    assert not other["repository_vouched"]
