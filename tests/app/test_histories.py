"""Reading what happened: diffs as git writes them, values of any shape, and readers who leave out some events."""

import subprocess

import pytest

from app import files, ids, reported
from app.enums import FileChangeKind

GIT = ["git", "-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "init.defaultBranch=main"]
LINES = "".join(f"line {number}\n" for number in range(20))


@pytest.fixture
def diff(tmp_path):
    """What the real git says about a change of a folder."""

    def git(*arguments):
        return subprocess.run([*GIT, *arguments], cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    git("init")
    (tmp_path / "old.txt").write_text(LINES)

    def changed(change):
        git("add", "-A")
        git("commit", "-m", "base")
        change(tmp_path)
        git("add", "-A")
        return git("diff", "--cached", "-M", "--binary")

    return changed


def rename(to, more=""):
    def change(folder):
        (folder / "old.txt").rename(folder / to)
        (folder / to).write_text(LINES + more)

    return change


def write(name, content):
    return lambda folder: (folder / name).write_text(content)


CREATED, MODIFIED, DELETED, RENAMED = FileChangeKind


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (write("new.txt", "a\nb\n"), (CREATED, None, 2, 0)),
        (write("new.txt", ""), (CREATED, None, 0, 0)),
        (write("old.txt", LINES.replace("line 3\n", "--- x\n+++ y\n")), (MODIFIED, None, 2, 1)),
        (write("old.txt", "no newline at its end"), (MODIFIED, None, 1, 20)),
        (lambda folder: (folder / "old.txt").unlink(), (DELETED, None, 0, 20)),
        (lambda folder: (folder / "old.txt").chmod(0o755), (MODIFIED, None, 0, 0)),
        (rename("new.txt"), (RENAMED, "old.txt", 0, 0)),
        (rename("new.txt", "more\n"), (RENAMED, "old.txt", 1, 0)),
        (lambda folder: (folder / "old.txt").write_bytes(bytes(range(256))), (MODIFIED, None, 0, 0)),
    ],
)
def test_a_diff_is_read_as_git_writes_it(change, told, diff):
    """What became of the file, where it was before, and how many lines came and went."""
    found = files.read(diff(change))
    assert (found.kind, found.previous_path, found.additions, found.deletions) == told


@pytest.mark.parametrize("name", ["with space.txt", "ünïcödé.txt", 'quo"te.txt', "tab\there.txt", "back\\slash.txt"])
def test_an_odd_path_is_read_back(name, diff, tmp_path):
    """However git quotes it."""
    (tmp_path / "old.txt").rename(tmp_path / name)
    found = files.read(diff(lambda folder: (folder / name).rename(folder / "plain.txt")))
    assert (found.kind, found.previous_path) == (RENAMED, name)


@pytest.mark.parametrize("text", ["", "garbage", "@@", "rename from ", 'rename from "', "\n@@\n+++\n---"])
def test_any_text_can_be_read_as_a_diff(text):
    """It may be whatever a worker sent."""
    assert files.read(text).additions in (0, 1)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (7, 7),
        (7.9, 7),
        (True, None),
        ("7", None),
        (None, None),
        (1 << 40, reported.LARGEST),
        (-(1 << 40), -reported.LARGEST),
    ],
)
def test_a_number_is_one_that_clients_can_hold(value, told):
    assert reported.number({"n": value}, "n") == told


def test_what_is_not_there_is_empty():
    """And so is what is something else."""
    for given in ({}, {"n": None}, {"n": 7}, {"n": [1]}, {"n": {"blob": 7}}, {"n": {"blob": "xyz"}}):
        assert (reported.text(given, "n"), reported.line(given, "n"), reported.truth(given, "n")) == ("", None, False)
        assert (reported.word(given, "n", FileChangeKind), reported.long_text(ids.new(), given, "n")) == (None, "")
