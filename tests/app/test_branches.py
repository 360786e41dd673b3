"""Branch names: readable where the title allows it, and valid for git whatever it is."""

import subprocess

import pytest

from app import branches
from app.enums import TicketKind

ODD = [
    "🚀🚀",
    "登录页面",
    "...",
    "..",
    "a..b",
    "name.lock",
    ".hidden",
    "ends in dots...",
    "/slash/at/both/",
    "@{upstream}",
    "@",
    "HEAD",
    "-rf",
    "a~b^c:d?e*f[g\\h",
    "tab\tnew\nline\x00\x7f",
    "\ud800",
    " ",
    "-" * 300,
    "x" * 300,
    "İstanbul'da ﬁnal ½",
]


@pytest.mark.parametrize(
    ("kind", "title", "expected"),
    [
        (TicketKind.FEATURE, "Add a login page", "feature/12-add-a-login-page"),
        (TicketKind.BUG, "Crème brûlée isn't served", "fix/12-creme-brulee-isn-t-served"),
        (TicketKind.HOTFIX, "Straße gesperrt", "hotfix/12-strasse-gesperrt"),
        (TicketKind.REFACTOR, "🚀 Faster!", "refactor/12-faster"),
        (TicketKind.DOCS, "登录页面", "docs/12-work"),
        (TicketKind.TEST, "...", "test/12-work"),
        (TicketKind.CHORE, "README.md", "chore/12-readme-md"),
    ],
)
def test_kind_number_and_title(kind, title, expected):
    """A branch tells what kind of work it is, for which ticket, and about what."""
    assert branches.name(kind, 12, title) == expected


def test_long_titles_end_at_a_word():
    """A slug is cut between words, and within one only when there is but one."""
    title = "Let everybody who is signed in change the colour of the page"
    assert branches.slug(title) == "let-everybody-who-is-signed-in-change"
    assert branches.slug("exactly forty characters are kept as is it") == "exactly-forty-characters-are-kept-as-is"
    assert branches.slug("a" * 40 + " b") == "a" * 40
    assert branches.slug("a" * 41) == "a" * 40


@pytest.mark.parametrize("title", ODD)
@pytest.mark.parametrize("kind", TicketKind)
def test_git_takes_every_name(kind, title):
    """Whatever people call a ticket, git takes the branch."""
    branch = branches.name(kind, 7, title)
    subprocess.run(["git", "check-ref-format", "--branch", branch], check=True, capture_output=True)
    assert len(branches.slug(title)) <= branches.SLUG_CHARS
