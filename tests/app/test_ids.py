"""Public ids: written and read without loss, and nothing else is read."""

import random
import string
import time
from uuid import UUID

import pytest

from app import ids
from app.errors import NotFound


def test_what_is_written_is_read_again():
    """Any UUID, also the smallest and the greatest, comes back with its prefix."""
    chance = random.Random(1)
    for number in [0, 1, (1 << 128) - 1, *(chance.getrandbits(128) for _ in range(500))]:
        value = UUID(int=number)
        assert ids.decode(ids.encode("ticket", value)) == ("ticket", value)


def test_the_text_follows_the_typeid_specification():
    """The specification's own examples."""
    assert ids.encode("prefix", UUID(int=1)) == "prefix_00000000000000000000000001"
    assert ids.encode("prefix", UUID("0110c853-1d09-52d8-d73e-1194e95b5f19")) == "prefix_0123456789abcdefghjkmnpqrs"
    assert ids.encode("prefix", UUID(int=(1 << 128) - 1)) == "prefix_7zzzzzzzzzzzzzzzzzzzzzzzzz"


def test_ids_sort_as_they_were_made():
    """One made a millisecond later is greater, as a UUID and as text."""
    made = []
    for _ in range(20):
        begun = time.time_ns() // 1_000_000
        while time.time_ns() // 1_000_000 == begun:
            pass
        made.append(ids.new())

    assert sorted(made) == made
    assert sorted(ids.encode("task", one) for one in made) == [ids.encode("task", one) for one in made]
    assert {(one.version, one.variant) for one in made} == {(7, "specified in RFC 4122")}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "_",
        "ticket",
        "ticket_",
        "0" * 26,
        "_" + "0" * 26,
        "ticket_" + "0" * 25,
        "ticket_" + "0" * 27,
        "ticket_8" + "0" * 25,
        "ticket_z" + "0" * 25,
        "ticket_" + "0" * 25 + "A",
        "ticket_" + "0" * 25 + "\0",
        "ticket_" + "0" * 25 + "٣",
        "ticket_" + "0" * 25 + "\ud800",
        "ticket_" + "0" * 25 + "\n",
        "ticket_" + "0" * 100_000,
    ],
    ids=lambda text: ascii(text)[:40],
)
def test_nothing_else_is_read(text):
    """What `encode` could not have written is no id."""
    assert ids.decode(text) is None


def test_letters_that_look_like_digits_are_refused():
    """Crockford's i, l, o and u are never read, in no place; nor is anything outside the alphabet."""
    for character in set(string.printable) - set(ids.ALPHABET) - {"_"}:
        assert ids.decode("ticket_0" + character + "0" * 24) is None


def test_an_id_of_another_kind_is_an_id_of_nothing():
    """The refusal names the place and is the one of an unknown id."""
    with pytest.raises(NotFound) as refusal:
        ids.require(ids.encode("task", ids.new()), "ticket", "ticketId")

    assert refusal.value.path == ["ticketId"]
    assert refusal.value.message == NotFound().message
