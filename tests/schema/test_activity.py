"""A project's feed, live: everything once, in order, and nothing to those who may not see it."""

import asyncio
import contextlib
import random
import time

import pytest

from tests import world as w

FOLLOW = """subscription($id: ID!, $after: String) { projectActivity(projectId: $id, after: $after) {
  activities { seq cursor verb summary subject { id } } cursor caughtUp reset { reason firstAvailableSeq } } }"""
FEED = "query($id: ID!) { project(id: $id) { activity(last: 100) { nodes { seq cursor verb } } } }"


async def feed(account, project_id):
    return (await account(FEED, id=project_id)).data["project"]["activity"]["nodes"]


async def rename(account, project_id, name):
    await account.do("updateProject", "project { id }", projectId=project_id, name=str(name))


async def gathered(events, count):
    """Payloads until so many entries were seen, with the seqs of all of them."""
    payloads = []
    while sum(len(payload["activities"]) for payload in payloads) < count:
        payloads.append(await events.next())
    return payloads, [entry["seq"] for payload in payloads for entry in payload["activities"]]


async def test_the_feed_begins_at_its_beginning_and_goes_on_live(ada, apollo):
    """Without a cursor: first what is stored, then each change as it happens, with its object."""
    async with ada.following(FOLLOW, id=apollo) as events:
        first = await events.next()
        ticket = await w.ticket(ada, apollo)
        second = await events.next()

    assert [(entry["seq"], entry["verb"]) for entry in first["activities"]] == [(1, "project.created")]
    assert (first["caughtUp"], first["reset"]) == (True, None)
    assert [(entry["seq"], entry["verb"], entry["subject"]["id"]) for entry in second["activities"]] == [
        (2, "ticket.created", ticket["id"])
    ]


async def test_a_change_arrives_without_waiting_for_a_poll(ada, apollo):
    """Well within the five seconds after which a silent stream is read again."""
    async with ada.following(FOLLOW, id=apollo) as events:
        await events.next()
        for number in range(5):
            begun = time.monotonic()
            await rename(ada, apollo, number)
            await events.next()
            assert time.monotonic() - begun < 2


async def test_a_cursor_goes_on_exactly_behind_it(ada, apollo):
    """Each entry's cursor, and that of pages, resumes with the next entry."""
    for number in range(5):
        await rename(ada, apollo, number)
    entries = await feed(ada, apollo)
    assert [entry["seq"] for entry in entries] == [1, 2, 3, 4, 5, 6]

    for entry in entries:
        async with ada.following(FOLLOW, id=apollo, after=entry["cursor"]) as events:
            payload = await events.next()
            assert [one["seq"] for one in payload["activities"]] == list(range(entry["seq"] + 1, 7))
            assert (payload["caughtUp"], payload["cursor"]) == (True, entries[-1]["cursor"])


async def test_the_first_payload_comes_even_when_nothing_is_new(ada, apollo):
    """It is empty and says so; the next one holds the next change."""
    [entry] = await feed(ada, apollo)
    async with ada.following(FOLLOW, id=apollo, after=entry["cursor"]) as events:
        assert await events.next() == {"activities": [], "cursor": entry["cursor"], "caughtUp": True, "reset": None}
        await rename(ada, apollo, "Artemis")
        assert [one["seq"] for one in (await events.next())["activities"]] == [2]


async def test_a_long_history_comes_in_pieces(ada, apollo):
    """A hundred entries a payload; only the one that reaches the end says so."""
    for start in range(0, 240, 20):
        await asyncio.gather(*(rename(ada, apollo, start + number) for number in range(20)))
    async with ada.following(FOLLOW, id=apollo) as events:
        payloads, seqs = await gathered(events, 241)

    assert seqs == list(range(1, 242))
    assert [(len(payload["activities"]), payload["caughtUp"]) for payload in payloads] == [
        (100, False),
        (100, False),
        (41, True),
    ]


async def test_a_reader_who_comes_and_goes_misses_nothing(ada, bob, apollo):
    """Five write a hundred changes while one reads and leaves at random: every entry once, in order, without a hole."""
    await w.share(ada, apollo, bob)
    chance, seqs, cursor = random.Random(5), [], None

    async def write(writer):
        for number in range(20):
            await w.ticket(ada if writer % 2 else bob, apollo, title=f"{writer}.{number}")

    writing = asyncio.gather(*(write(writer) for writer in range(5)))
    connections = 0
    while len(seqs) < 102:
        connections += 1
        async with bob.following(FOLLOW, id=apollo, after=cursor) as events:
            for _ in range(chance.randint(1, 4)):
                payload = await events.next()
                assert payload["reset"] is None
                seqs += [entry["seq"] for entry in payload["activities"]]
                cursor = chance.choice([payload["cursor"], *(entry["cursor"] for entry in payload["activities"][-1:])])
                if len(seqs) >= 102:
                    break
    await writing

    assert seqs == list(range(1, 103))
    assert connections > 3


async def test_all_readers_see_the_same(ada, apollo):
    """Ten at once, while changes come: the same entries in the same order."""
    async with contextlib.AsyncExitStack() as stack:
        readers = [await stack.enter_async_context(ada.following(FOLLOW, id=apollo)) for _ in range(10)]
        await asyncio.gather(*(rename(ada, apollo, number) for number in range(20)))
        seen = [await gathered(events, 21) for events in readers]

    told = [[entry for payload in payloads for entry in payload["activities"]] for payloads, _ in seen]
    assert [seqs for _, seqs in seen] == [list(range(1, 22))] * 10
    assert all(one == told[0] for one in told)


async def test_the_cursor_of_another_stream_starts_again(ada, apollo):
    """It is told why and from where; everything follows. A cursor ahead of the stream is no better."""
    other = await w.project(ada, name="Gemini")
    for number in range(3):
        await rename(ada, other, number)
    for project, cursor in (
        (apollo, (await feed(ada, other))[-1]["cursor"]),
        (other, (await feed(ada, apollo))[-1]["cursor"]),
    ):
        async with ada.following(FOLLOW, id=project, after=cursor) as events:
            payload = await events.next()
            assert payload["reset"]["firstAvailableSeq"] == 1
            assert payload["reset"]["reason"].startswith("This cursor belongs to another stream")
            assert [entry["seq"] for entry in payload["activities"]] == list(range(1, len(payload["activities"]) + 1))
            await rename(ada, project, "Next")
            assert (await events.next())["reset"] is None


@pytest.mark.parametrize("after", ["", "garbage", "ü", "a\0b", "x" * 1_000, "MTIzOjE"[:-1]])
async def test_what_is_no_cursor_is_refused(after, ada, apollo):
    """The stream does not begin."""
    async with ada.following(FOLLOW, id=apollo, after=after) as events:
        message = await events.message()

    assert message["type"] == "error"
    assert [error["extensions"]["code"] for error in message["payload"]] == ["BAD_USER_INPUT"]


async def test_a_removed_members_stream_ends_at_once(ada, bob, apollo):
    """Within a second, with an error; nothing that came after the removal was delivered, however quickly it came."""
    for _ in range(5):
        await w.share(ada, apollo, bob)
        shared = (await feed(ada, apollo))[-1]
        async with bob.following(FOLLOW, id=apollo, after=shared["cursor"]) as events:
            assert (await events.next())["activities"] == []
            begun = time.monotonic()
            await ada.do("removeMember", "project { id }", projectId=apollo, userId=bob.id)
            changing = asyncio.gather(*(rename(ada, apollo, f"{begun} {number}") for number in range(3)))
            heard = []
            while (message := await events.message())["type"] == "next":
                heard += message["payload"]["data"]["projectActivity"]["activities"]
            assert time.monotonic() - begun < 1
            await changing

        assert heard == []
        assert (message["type"], message["payload"][0]["extensions"]["code"]) == ("error", "FORBIDDEN")


async def test_a_feed_is_its_projects_alone(ada, bob, apollo):
    """What happens elsewhere is not in it, and wakes nobody with something to read."""
    theirs = await w.project(bob)
    async with ada.following(FOLLOW, id=apollo) as events:
        await events.next()
        await rename(bob, theirs, "Secret")
        await w.project(ada, name="Gemini")
        await rename(ada, apollo, "Artemis")
        payload = await events.next()

    assert [entry["summary"] for entry in payload["activities"]] == ["changed name of the project"]
    assert [entry["seq"] for entry in payload["activities"]] == [2]
