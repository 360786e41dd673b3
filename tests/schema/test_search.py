"""Searching tickets: words, their beginnings, numbers, and anything that people type."""

import pytest

from tests import world as w

SEARCH = """query($id: ID!, $text: String) {
  project(id: $id) { tickets(filter: {search: $text}) { nodes { number } totalCount } } }"""
TICKETS = (
    ("Land on the moon", "Softly, by 1969-07-20."),
    ("Fix the Lander's radar", "See app/main.py and https://example.com/radar?x=1 in foo_bar-baz v1.2.3"),
    ("Ärger mit dem Überschall", "“Quoted” words — and 日本語 too. 3 engines & 12 bolts <b>loose</b>"),
    ("100% don't", "it's C:\\temp | a || b && !c <-> :* 'x'"),
)


async def search(account, project_id, text):
    answer = await account(SEARCH, id=project_id, text=text)
    assert answer.errors == [], (text, answer.errors)
    found = answer.data["project"]["tickets"]
    assert found["totalCount"] == len(found["nodes"])
    return sorted(node["number"] for node in found["nodes"])


@pytest.fixture
async def filled(ada, apollo):
    for title, description in TICKETS:
        await w.ticket(ada, apollo, title=title, description=description)
    return apollo


async def test_every_word_must_match(ada, filled):
    """The beginning of a word is enough, in title or description, whatever its case."""
    for text, found in (
        ("moon", [1]),
        ("MOON", [1]),
        ("mo", [1]),
        ("oon", []),
        ("land", [1, 2]),
        ("land moon", [1]),
        ("moon land softly", [1]),
        ("land rover", []),
        ("  moon  ", [1]),
        ("ärger", [3]),
        ("ÜBER", [3]),
        ("日本", [3]),
        ("", [1, 2, 3, 4]),
        ("   ", [1, 2, 3, 4]),
    ):
        assert await search(ada, filled, text) == found, text


async def test_punctuation_parts_words(ada, filled):
    """Written or searched: names of files, addresses, versions and dates are found by any part."""
    for text in (
        "main.py",
        "py",
        "app/main.py",
        "main",
        "example.com",
        "com/radar",
        "https://example.com",
        "bar",
        "foo_bar-baz",
        "1.2.3",
        "Lander's",
    ):
        assert await search(ada, filled, text) == [2], text
    for text, found in (
        ("1969-07-20", [1]),
        ("07", [1]),
        ("quoted", [3]),
        ("“quoted”", [3]),
        ("<b>loose", [3]),
        ("100%", [4]),
    ):
        assert await search(ada, filled, text) == found, text


async def test_numbers_find_their_ticket(ada, filled):
    """`#1` is ticket 1 and nothing else; `1` also finds what has it in its text; a number of nobody finds nothing."""
    assert await search(ada, filled, "#1") == [1]
    assert await search(ada, filled, " #4 ") == [4]
    assert await search(ada, filled, "1") == [1, 2, 3, 4]  # v1.2.3, 12 bolts, 100%
    assert await search(ada, filled, "12") == [3]
    for text in ("#5", "#0", "#99999999999999999999", "99999999999999999999", "#\u0661"):
        assert await search(ada, filled, text) == [], text


@pytest.mark.parametrize(
    "text",
    [
        "'",
        "''",
        "\\",
        "\\'",
        '"',
        "& | !",
        "a & b",
        "!moon",
        "moon:*",
        ":*",
        "<->",
        "moon <-> land",
        "(",
        "()",
        "%",
        "_",
        "'); DROP TABLE tickets; --",
        "\x01",
        "\n",
        "\u200b",
        "🚀",
        "e\u0301",
        "\u017f",
        "İ",
        "-",
        "--",
        "@",
        "a" * 200,
        "' " * 100,
        "&" * 200,
        "\\" * 200,
    ],
    ids=lambda text: ascii(text)[:20],
)
async def test_nothing_that_people_type_is_an_error(text, ada, filled):
    """Operators and quotes mean nothing, and punctuation alone finds nothing."""
    found = await search(ada, filled, text)

    if text in ("!moon", "moon:*", "moon <-> land"):
        assert found == [1]
    elif not any(character.isalnum() for character in text) and text.strip():
        assert found == []


async def test_text_that_cannot_be_searched_is_refused(ada, apollo):
    """NUL, half a surrogate pair, and more than a line."""
    for text in ("a\0b", "x" * 201):
        assert (await ada(SEARCH, id=apollo, text=text)).codes == ["BAD_USER_INPUT"]


async def test_a_change_is_found_at_once(ada, filled):
    """The new words are there and the old ones are gone; another project's tickets never are."""
    fifth = await w.ticket(ada, filled, title="Return to Jupiter")
    assert await search(ada, filled, "jupiter") == [5]

    await ada.do("updateTicket", "ticket { id }", ticketId=fifth["id"], title="Return to Saturn")

    assert (await search(ada, filled, "saturn"), await search(ada, filled, "jupiter")) == ([5], [])
    assert await search(ada, await w.project(ada, name="Gemini"), "saturn") == []
