"""Cursors and page arguments, without rows."""

import base64
from uuid import UUID

import pytest

from app import ids
from app.errors import BadUserInput
from app.models import Project, Task, Ticket
from app.paging import Arguments, Order, Sealed, cut

TICKETS = Sealed("tickets of apollo for ada")


@pytest.mark.parametrize("key", [0, 1, 15, 16, (1 << 31) - 1, UUID(int=0), ids.new()])
def test_a_cursor_is_read_as_it_was_written(key):
    assert TICKETS.read(TICKETS.write(key), "after", type(key)) == key


@pytest.mark.parametrize("scope", ["tickets of apollo for bob", "tasks of apollo for ada", "tickets of gemini for ada"])
def test_a_cursor_of_another_list_is_refused(scope):
    """Of another account, another kind, another parent."""
    with pytest.raises(BadUserInput) as refusal:
        TICKETS.read(Sealed(scope).write(5), "before", int)

    assert refusal.value.path == ["before"]


def sealed(value):
    """A cursor whose seal is right, as somebody who knows this code could make it."""
    return base64.urlsafe_b64encode(TICKETS._seal(value) + value.encode()).decode().rstrip("=")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "=",
        "x",
        "AAAA",
        "A" * 128,
        "A" * 1_000_000,
        "é" * 10,
        "\0",
        "\ud800",
        TICKETS.write(5) + "=",
        TICKETS.write(5) + "\n",
        TICKETS.write(5)[:-1],
        sealed(""),
        sealed("05"),
        sealed("0x5"),
        sealed("+5"),
        sealed("-5"),
        sealed(" 5"),
        sealed("zz"),
        sealed("80000000"),
        sealed("f" * 80),
        TICKETS.write(UUID(int=5)),
    ],
    ids=lambda text: ascii(text)[:40],
)
def test_anything_else_is_refused(text):
    """Garbage, and what is well sealed but no key that was ever written: beyond what a column holds, for one."""
    with pytest.raises(BadUserInput):
        TICKETS.read(text, "after", int)


def test_a_number_is_no_cursor_of_a_list_by_id():
    with pytest.raises(BadUserInput):
        TICKETS.read(TICKETS.write(5), "after", UUID)


@pytest.mark.parametrize(
    "given", [{"first": 0}, {"first": -1}, {"first": 101}, {"last": 0}, {"last": 101}, {"first": 1, "last": 1}]
)
def test_page_sizes_have_bounds(given):
    with pytest.raises(BadUserInput):
        Arguments(**given)


def test_a_page_has_a_size_when_nothing_is_said():
    sizes = [Arguments().size, Arguments(first=1).size, Arguments(last=100).size]
    assert sizes == [20, 1, 100]


def test_one_row_more_says_that_there_is_more():
    """It is read and not shown; a page from the end is turned round again."""
    rows = [Ticket(number=number) for number in (3, 2, 1)]
    order = Order(Ticket.number, descending=True)

    front = cut(rows, order, Arguments(first=2), cursors=TICKETS, count=None)
    back = cut(rows[::-1], order, Arguments(last=2), cursors=TICKETS, count=None)

    assert ([row.number for row in front.rows], front.has_next, front.has_previous) == ([3, 2], True, False)
    assert ([row.number for row in back.rows], back.has_next, back.has_previous) == ([2, 1], False, True)


def test_the_kind_of_key_is_the_columns():
    assert [Order(column).kind for column in (Ticket.number, Task.id, Project.id)] == [int, UUID, UUID]
