"""Repositories that people may name: as strict as git and GitHub, and no stricter."""

import random
import subprocess

import pytest

from app import projects
from app.inputs import Checks


def refused(**given):
    checks = Checks()
    projects._repository(checks, given)
    return [error.path for error in checks.refusals]


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
        assert (projects.BRANCH_NAME.fullmatch(name) is not None) is taken, name
    assert projects.BRANCH_NAME.fullmatch("@") is None


@pytest.mark.parametrize(
    "url",
    [
        "https://example.com/apollo.git",
        "https://example.com:8443/group/sub/apollo",
        "ssh://git@example.com:22/apollo.git",
        "git@example.com:group/apollo.git",
        "git://example.com/apollo",
        "file:///srv/apollo.git",
        "/srv/apollo.git",
    ],
)
def test_every_address_that_git_clones_is_welcome(url):
    assert refused(clone_url=url) == []


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
        "https://example.com/a b",
        "https://",
        " ",
        "javascript:alert(1)",
        "https://example.com/" + "a" * 2_000,
    ],
    ids=lambda url: url[:30],
)
def test_an_address_with_a_password_or_of_nothing_is_refused(url):
    """Also what git would take for an option or for a command."""
    assert refused(clone_url=url) == [["repository", "cloneUrl"]]


@pytest.mark.parametrize(
    ("owner", "name"), [("ada", "apollo"), ("a", ".github"), ("A-1", "_a.b-c"), ("ada_corp", "x" * 100)]
)
def test_names_that_github_has(owner, name):
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
def test_names_that_github_has_not(owner, name, places):
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
def test_a_repository_is_named_in_one_way(given):
    """Owner and name, or an address; neither both nor half of one."""
    assert refused(**given) == [["repository"]]


def test_settings_that_are_younger_than_a_row_have_their_default():
    """A project of an earlier version reads as if it had been asked."""
    assert projects.ProjectSettings.stored({"concurrency": 7}) == projects.ProjectSettings(concurrency=7)
