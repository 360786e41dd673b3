"""What people say to agents: who may, what is refused, how far it comes, and how it is taken back."""

import asyncio

import pytest
from sqlalchemy import update

from app import ids
from app.enums import MessageStatus
from app.messages import MOVES
from app.models import Message
from tests import world as w
from tests.schema import boxes

FIELDS = """message { id kind body author authorKind status deliveredInTurn deliveredAt expiresAt
  sandbox { id } }"""
LIST = """query($id: ID!, $first: Int, $after: String) { sandbox(id: $id) { messages(first: $first, after: $after) {
  totalCount nodes { id body status } pageInfo { endCursor hasNextPage } } } }"""
FEED = """query($id: ID!) { project(id: $id) { activity(last: 1) { nodes {
  verb summary actor subject { __typename id } } } } }"""


@pytest.fixture
async def box(ada, apollo):
    return await boxes.running(ada, apollo)


async def say(account, box, body="Go left", **given):
    return await account.change("injectMessage", FIELDS, sandboxId=box.id, body=body, **given)


async def said(account, box, body="Go left", **given):
    payload = await say(account, box, body, **given)
    assert payload["errors"] == []
    return payload["message"]


async def listed(account, box, **page):
    return (await account(LIST, id=box.id, **page)).data["sandbox"]["messages"]


async def test_a_message_says_who_said_it(ada, bob, apollo, box):
    """The signed-in person, whatever the body claims; it waits, and the project's feed tells of it."""
    await w.share(ada, apollo, bob)

    message = await said(bob, box, "Signed, the Guardian")

    told = {name: message[name] for name in ("kind", "body", "author", "authorKind", "status", "sandbox")}
    assert told == {
        "kind": "USER",
        "body": "Signed, the Guardian",
        "author": "Bob",
        "authorKind": "USER",
        "status": "QUEUED",
        "sandbox": {"id": box.id},
    }
    [entry] = (await ada(FEED, id=apollo)).data["project"]["activity"]["nodes"]
    assert (entry["verb"], entry["actor"]) == ("message.injected", "Bob")
    assert entry["subject"] == {"__typename": "Message", "id": message["id"]}
    assert "Guardian" not in entry["summary"]


@pytest.mark.parametrize("kind", ["GUARDIAN_NUDGE", "SYSTEM", "COLLABORATION"])
async def test_people_speak_as_people(kind, ada, box):
    """What the guardian, the server and other agents say is theirs alone."""
    assert w.refusals(await say(ada, box, kind=kind)) == [("INVALID_INPUT", ["kind"])]
    assert (await listed(ada, box))["totalCount"] == 0


@pytest.mark.parametrize("body", ["", " \n\t", "x" * 32_001, "a\0b", "half \ud83d"], ids=lambda body: ascii(body)[:20])
async def test_a_body_that_says_nothing_is_refused(body, ada, box):
    """Or too much, or what cannot be stored."""
    assert w.refusals(await say(ada, box, body)) == [("INVALID_INPUT", ["body"])]


async def test_several_mistakes_are_told_at_once(ada, box):
    """An end that has passed is one."""
    payload = await say(ada, box, "", kind="SYSTEM", expiresAt="2020-01-31T12:00:00Z")
    assert {path[0] for _, path in w.refusals(payload)} == {"body", "kind", "expiresAt"}


async def test_nobody_hears_in_a_sandbox_that_has_ended(ada, box):
    """Nor in one that is leaving; in one that is about to start somebody will."""
    starting = await boxes.spawn(ada, await w.project(ada))
    assert (await said(ada, starting))["status"] == "QUEUED"

    await ada.do("stopSandbox", "sandbox { id }", sandboxId=starting.id)
    await box.finish()
    for one in (starting, box):
        assert w.refusals(await say(ada, one)) == [("SANDBOX_NOT_RUNNING", ["sandboxId"])]


async def test_a_message_is_said_once_for_one_key(ada, box):
    """Also when it is sent several times at once."""
    payloads = await asyncio.gather(*(say(ada, box, idempotencyKey="k") for _ in range(3)))

    assert len({payload["message"]["id"] for payload in payloads}) == 1
    assert (await listed(ada, box))["totalCount"] == 1
    assert w.refusals(await say(ada, box, "Go right", idempotencyKey="k")) == [
        ("IDEMPOTENCY_MISMATCH", ["idempotencyKey"])
    ]


async def test_an_inbox_has_its_limit(ada, box):
    """A hundred may wait; shown to the agent they make room."""
    await asyncio.gather(*(said(ada, box, str(number)) for number in range(100)))
    assert w.refusals(await say(ada, box)) == [("LIMIT_REACHED", ["sandboxId"])]

    waiting = (await box.report())["pendingMessages"]
    await box.do("acknowledgeMessages", "desiredState", messageIds=[waiting[0]["id"]])
    assert (await said(ada, box))["status"] == "QUEUED"


async def test_pages_go_through_all_messages(ada, box):
    """The oldest first, each once."""
    for number in range(5):
        await said(ada, box, str(number))
    first = await listed(ada, box, first=3)
    rest = await listed(ada, box, first=3, after=first["pageInfo"]["endCursor"])

    assert [message["body"] for message in first["nodes"] + rest["nodes"]] == list("01234")
    assert (first["totalCount"], first["pageInfo"]["hasNextPage"], rest["pageInfo"]["hasNextPage"]) == (5, True, False)


async def test_a_message_tells_how_far_it_has_come(ada, box):
    """QUEUED, SENT once its worker has it, DELIVERED with the turn in which the agent was shown it."""
    message = await said(ada, box)
    stages = [(await listed(ada, box))["nodes"][0]["status"]]
    await box.report()
    stages.append((await listed(ada, box))["nodes"][0]["status"])
    await box.do("acknowledgeMessages", "desiredState", messageIds=[message["id"]], deliveredInTurn=7)
    document = "query($id: ID!) { node(id: $id) { ... on Message { status deliveredInTurn deliveredAt } } }"
    told = (await ada(document, id=message["id"])).data["node"]

    assert stages == ["QUEUED", "SENT"]
    assert (told["status"], told["deliveredInTurn"], told["deliveredAt"] is None) == ("DELIVERED", 7, False)


async def test_a_message_past_its_time_is_not_shown_any_more(ada, box):
    """Before anybody has noted that it expired."""
    message = await said(ada, box, expiresAt="2999-01-31T12:00:00Z")
    assert message["expiresAt"] == "2999-01-31T12:00:00.000000Z"
    async with box.world.server.db.writing() as session:
        await session.execute(update(Message).values(expires_at=Message.created_at))

    assert (await box.report())["pendingMessages"] == []


async def put(box, message, status):
    """Into this status, as its worker or time would."""
    delivered = {"delivered_at": Message.created_at} if status is MessageStatus.DELIVERED else {}
    async with box.world.server.db.writing() as session:
        key = ids.decode(message["id"])[1]
        await session.execute(update(Message).where(Message.id == key).values(status=status, **delivered))


@pytest.mark.parametrize("status", MessageStatus)
async def test_a_message_can_be_taken_back_until_it_was_shown(status, ada, box):
    """Its worker is not told of it any more; what has come to its end stays."""
    message = await said(ada, box)
    await put(box, message, status)

    payload = await ada.change("cancelMessage", "message { status }", messageId=message["id"])

    if MessageStatus.CANCELLED in MOVES[status]:
        assert payload == {"message": {"status": "CANCELLED"}, "errors": []}
    else:
        assert w.refusals(payload) == [("INVALID_TRANSITION", ["messageId"])]
        assert (await listed(ada, box))["nodes"][0]["status"] == status.name
    assert (await box.report())["pendingMessages"] == []


async def test_what_was_shown_was_shown(ada, box):
    """Taken back too late, by a worker that held it already: it is told as delivered, which is the truth."""
    message = await said(ada, box)
    await box.report()
    await ada.do("cancelMessage", "message { id }", messageId=message["id"])
    await box.do("acknowledgeMessages", "desiredState", messageIds=[message["id"]])

    assert (await listed(ada, box))["nodes"][0]["status"] == "DELIVERED"


async def test_a_message_to_others_answers_like_none(ada, bob, box):
    """For reading, for taking back, and for saying; a viewer may read and not speak."""
    message = await said(ada, box)
    assert (await bob("query($id: ID!) { node(id: $id) { id } }", id=message["id"])).codes == ["NOT_FOUND"]
    assert w.refusals(await bob.change("cancelMessage", "message { id }", messageId=message["id"])) == [
        ("NOT_FOUND", ["messageId"])
    ]
    assert w.refusals(await say(bob, box)) == [("NOT_FOUND", ["sandboxId"])]
