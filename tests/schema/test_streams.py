"""The digest of a stream, computed again by those who follow it from nothing but the ids that they see."""

import hashlib

import pytest

from tests import world as w
from tests.schema import boxes

DIGEST = "digest { epoch count lastSeq cursor sha256 }"
OF_SANDBOX = f"query($id: ID!) {{ sandbox(id: $id) {{ {DIGEST} }} }}"
OF_PROJECT = f"query($id: ID!) {{ project(id: $id) {{ {DIGEST} }} }}"
EVENTS = """subscription($id: ID!, $after: String) { sandboxEvents(sandboxId: $id, after: $after) {
  entries: events { id seq } caughtUp } }"""
FEED = """subscription($id: ID!, $after: String) { projectActivity(projectId: $id, after: $after) {
  entries: activities { id seq } caughtUp } }"""


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
