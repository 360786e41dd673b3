"""What people may write, without a server."""

import pytest

from app.errors import BadUserInput, InvalidInput, Several
from app.inputs import Checks, camel, require_storable, searchable


def line(value, **given):
    with Checks() as checks:
        return checks.line(value, "title", **given)


def test_space_around_a_line_is_not_part_of_it():
    assert line(" \t Land on the moon \u3000") == "Land on the moon"


@pytest.mark.parametrize("value", ["", "   ", "\u00a0\u3000", "\u200b", "\u200d \u2060"])
def test_a_line_says_something(value):
    """Spaces and characters that nobody sees are not a title."""
    with pytest.raises(InvalidInput, match="cannot be empty") as refusal:
        line(value)

    assert refusal.value.path == ["title"]


@pytest.mark.parametrize("value", ["a\nb", "a\rb", "a\tb", "a\x1bb", "a\x85b", "a\u2028b", "a\x7fb"])
def test_a_line_is_one_line(value):
    with pytest.raises(InvalidInput, match="line breaks or control characters"):
        line(value)


@pytest.mark.parametrize("value", ["👩\u200d🚀", "naïve", "日本語", "e\u0301", "שלום", "<script>", "'; --"])
def test_every_script_is_welcome(value):
    """Joiners within a word are part of it."""
    assert line(value) == value


def test_the_longest_line_is_named():
    """Exactly the limit passes; one more says how many there are and how many may be."""
    assert line("é" * 200)
    with pytest.raises(InvalidInput, match="title has 201 characters; 200 is the most"):
        line("é" * 201)


@pytest.mark.parametrize("value", ["a\0b", "\ud800", "a\udfffb"])
def test_what_cannot_be_stored_is_refused_everywhere(value):
    """In lines, blocks and searches alike."""
    for check in (Checks.line, Checks.block):
        with pytest.raises(InvalidInput), Checks() as checks:
            check(checks, value, "title")
    with pytest.raises(BadUserInput):
        searchable(value)


def test_all_refusals_are_told_together():
    """Each with its own place, in the order of the checks."""

    def check():
        with Checks() as checks:
            checks.line("", "name")
            checks.between(0, 1, 9, "settings", "concurrency")
            checks.at_most([1, 2], 1, "settings", "checks")

    with pytest.raises(Several) as refusals:
        check()

    assert [error.path for error in refusals.value.errors] == [
        ["name"],
        ["settings", "concurrency"],
        ["settings", "checks"],
    ]


def test_bounds_belong_to_a_range():
    """Both ends pass; beyond them, and what is no number, does not."""
    for value, passes in ((1, True), (9, True), (0.999, False), (9.001, False), (float("nan"), False)):
        checks = Checks()
        checks.between(value, 1, 9, "cpu")
        assert (checks.refusals == []) is passes


def test_an_error_of_ours_hides_no_other_error():
    """Something else that goes wrong inside comes out as it is."""

    def check():
        with Checks() as checks:
            checks.refuse("No.", ["title"])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        check()


def test_unstorable_text_is_found_wherever_it_is():
    """In nested inputs and lists; the path is the client's own."""
    given = {"clone_url": "fine", "settings": {"checks": ["fine", "\0"], "model": "\ud800"}, "number": 1}

    with pytest.raises(Several) as refusals:
        require_storable(given)

    assert [error.path for error in refusals.value.errors] == [["settings", "checks", "1"], ["settings", "model"]]


def test_names_are_written_as_clients_write_them():
    assert [camel(name) for name in ("title", "clone_url", "budget_usd")] == ["title", "cloneUrl", "budgetUsd"]
