"""The digest of a stream, computed again by those who follow it from nothing but the ids that they see."""

import hashlib
import secrets

import pytest
from sqlalchemy import update

from app import ids, streams
from app.models import Stream
from tests import world as w
from tests.schema import boxes

DIGEST = "digest { epoch count lastSeq cursor sha256 }"
OF_SANDBOX = f"query($id: ID!) {{ sandbox(id: $id) {{ {DIGEST} }} }}"
OF_PROJECT = f"query($id: ID!) {{ project(id: $id) {{ {DIGEST} }} }}"
EVENTS = """subscription($id: ID!, $after: String) { sandboxEvents(sandboxId: $id, after: $after) {
  entries: events { id seq } caughtUp } }"""
FEED = """subscription($id: ID!, $after: String) { projectActivity(projectId: $id, after: $after) {
  entries: activities { id seq } caughtUp } }"""

DIFFS = """subscription($id: ID!, $after: String) {
  sandboxDiffs(sandboxId: $id, after: $after) { changes { path diff } caughtUp } }"""
PAGES = {
    "sandbox": """query($id: ID!, $after: String, $before: String) { sandbox(id: $id) {
      page: events(first: 3, after: $after, before: $before) { nodes { seq } } } }""",
    "project": """query($id: ID!, $after: String, $before: String) { project(id: $id) {
      page: activity(first: 3, after: $after, before: $before) { nodes { seq } } } }""",
}


@pytest.fixture
async def box(ada, apollo):
    return await boxes.running(ada, apollo)


async def digest(account, document, **variables):
    answer = await account(document, **variables)
    assert answer.errors == []
    return next(iter(answer.data.values()))["digest"]


async def followed(account, document, upto, **variables):
    """What a subscriber is shown, up to that seq."""
    entries = []
    async with account.following(document, **variables) as events:
        while not entries or entries[-1]["seq"] < upto:
            entries += (await events.next())["entries"]
    return entries


def chained(entries, digest=bytes(32)):
    for entry in entries:
        digest = hashlib.sha256(digest + entry["id"].encode()).digest()
    return digest.hex()


async def test_a_subscriber_computes_a_sandboxs_digest(ada, box):
    """From the ids of its events, whatever the server or a worker wrote."""
    for _ in range(3):
        await box.report(*(box.event("LOG", {"text": "x"}) for _ in range(70)))
    found = await digest(ada, OF_SANDBOX, id=box.id)

    assert found["count"] == found["lastSeq"] == 212
    assert found["sha256"] == chained(await followed(ada, EVENTS, 212, id=box.id))


async def test_a_subscriber_computes_a_feeds_digest(ada, apollo):
    for _ in range(3):
        await w.ticket(ada, apollo)
    found = await digest(ada, OF_PROJECT, id=apollo)

    assert found["lastSeq"] == 4
    assert found["sha256"] == chained(await followed(ada, FEED, 4, id=apollo))


async def test_whoever_begins_in_the_middle_goes_on_from_the_digest_there(ada, box):
    """Its cursor leads to the next event, and the chain goes on from its hash."""
    begun = await digest(ada, OF_SANDBOX, id=box.id)
    for number in range(5):
        await box.did("LOG", {"text": str(number)})
    entries = await followed(ada, EVENTS, 7, id=box.id, after=begun["cursor"])

    assert [entry["seq"] for entry in entries] == [3, 4, 5, 6, 7]
    assert (await digest(ada, OF_SANDBOX, id=box.id))["sha256"] == chained(entries, bytes.fromhex(begun["sha256"]))


@pytest.mark.parametrize("kind", PAGES)
async def test_a_page_is_refused_where_a_subscription_would_be_reset(world, ada, apollo, box, kind):
    """A cursor ahead of the stream, or of before what is kept, skips nothing without a word."""
    await box.report(*(box.event("LOG") for _ in range(20)))
    for number in range(20):
        await ada.do("updateProject", "project { id }", projectId=apollo, name=f"Apollo {number}")
    stream_id = box.id if kind == "sandbox" else apollo
    async with world.server.db.writing() as session:
        key = ids.decode(stream_id)[1]
        await session.execute(update(Stream).where(Stream.id == key).values(first_seq=11))
        stream = await streams.read(session, key)
    for side in ("after", "before"):
        answers = [
            await ada(PAGES[kind], id=stream_id, **{side: str(streams.Cursor(stream.epoch, seq))})
            for seq in (0, 9, 10, stream.last_seq, stream.last_seq + 1)
        ]
        assert [answer.codes for answer in answers] == [["BAD_USER_INPUT"]] * 2 + [[]] * 2 + [["BAD_USER_INPUT"]]


async def test_texts_that_are_too_large_together_are_still_to_come(ada, box, monkeypatch):
    """The stream ends before them, live and stored; from the same cursor they come to who asks for less."""
    async with ada.following(DIFFS, id=box.id) as events:
        assert (await events.next())["caughtUp"]
        texts = [await box.upload(secrets.token_hex(100).encode()) for _ in range(4)]
        monkeypatch.setattr("app.blobs.LARGEST_BYTES", 300)
        await box.report(*(box.event("FILE_EDITED", boxes.edited("a", diff={"blob": text})) for text in texts))
        live = await events.message()
    async with ada.following(DIFFS, id=box.id) as events:
        stored = await events.message()
    for ended in (live, stored):
        assert (ended["type"], ended["payload"][0]["extensions"]["code"]) == ("error", "LIMIT_REACHED")
    async with ada.following(DIFFS.replace("diff }", "}"), id=box.id) as events:
        told = 0
        while told < 4:
            told += len((await events.next())["changes"])
