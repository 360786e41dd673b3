"""The hub: equal subscriptions share their answers, and each of them has every event once."""

import asyncio
import contextlib
import json
import secrets
from types import SimpleNamespace

import pytest
from sqlalchemy import delete

from app import auth, ids
from app.errors import Forbidden
from app.feeds import Ear
from app.models import Activity, Event, Stream
from app.readers import Reader
from app.sources import Source
from app.streams import Cursor
from resolvers.live import Live
from schema.hub import Hub, Room, _caught_up
from schema.socket import PROTOCOL, SEND_NOW
from schema.wire import Answer
from tests import world as w
from tests.schema import boxes
from tests.servers import PATIENCE_SECONDS, until

FOLLOW = """subscription($id: ID!, $after: String) {
  sandboxEvents(sandboxId: $id, after: $after) { events { seq type payload } cursor caughtUp reset { reason } } }"""
OTHER = FOLLOW.replace("payload }", "payload source }")
MINE = """subscription($id: ID!, $after: String) { projectActivity(projectId: $id, after: $after) {
  activities { seq subject { id } } cursor caughtUp } }"""


@pytest.fixture
async def box(ada, apollo):
    return await boxes.running(ada, apollo)


@pytest.fixture
def executed(world, monkeypatch):
    """How often an event of a subscription was executed."""
    counted = []
    execution = hub_of(world)[1]
    event = execution.event

    async def counting(*given):
        counted.append(given)
        return await event(*given)

    monkeypatch.setattr(execution, "event", counting)
    return counted


def hub_of(world) -> tuple[Hub, object]:
    answers = world.server.endpoint._answers
    return answers._hub, answers._execution


@contextlib.asynccontextmanager
async def followers(accounts, document, **variables):
    """Subscriptions that have reached the end of what is stored."""
    async with contextlib.AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(one.following(document, **variables)) for one in accounts]
        for events in opened:
            while not (await events.next())["caughtUp"]:
                pass
        yield opened


async def test_equal_subscriptions_share_one_execution(world, ada, bob, apollo, box, executed):
    """Of all members, whatever cursor each began with: an event is executed and encoded once for all of them."""
    await w.share(ada, apollo, bob)
    async with followers([ada, bob] * 5, FOLLOW, id=box.id) as early:
        cursor = (await box_page(ada, box))["cursor"]
        async with followers([ada, bob], FOLLOW, id=box.id, after=cursor) as late:
            executed.clear()
            await box.did("LOG", {"text": "once"})
            told = [await events.next() for events in early + late]
    assert all(payload == told[0] for payload in told)
    assert [event["type"] for event in told[0]["events"]] == ["LOG"]
    assert len(executed) == 1


async def test_other_documents_and_variables_do_not_share(world, ada, box):
    """Each is told what it asked for; one look at the database serves both."""
    async with followers([ada], FOLLOW, id=box.id) as one, followers([ada], OTHER, id=box.id) as other:
        assert hub_of(world)[0].groups == 2
        assert world.server.feeds.count == 1
        await box.did("LOG")
        assert "source" not in (await one[0].next())["events"][0]
        assert (await other[0].next())["events"][0]["source"] == "AGENT"


async def test_a_variable_inside_is_answered_to_each_as_it_gave_it(world, ada, box):
    """One document, and one stream with the same part of it: what an argument further in says tells them apart."""
    document = """subscription($id: ID!, $most: Int) { sandboxEvents(sandboxId: $id) { caughtUp
      events { ... on ToolCompletedEvent { output(maxChars: $most) } } } }"""
    async with followers([ada], document, id=box.id, most=2) as few, followers([ada], document, id=box.id) as whole:
        await box.did("TOOL_COMPLETED", {"toolUseId": "1", "tool": "Bash", "isError": False, "output": "abcdef"})
        assert [(await events.next())["events"] for events in few + whole] == [
            [{"output": "ab"}],
            [{"output": "abcdef"}],
        ]


async def test_each_operation_of_one_document_is_answered_for_itself(ada, box):
    """The name that chose it tells them apart; the text is the same."""
    one = "subscription One($id: ID!) { sandboxEvents(sandboxId: $id) { events { seq } caughtUp } }"
    document = one + one.replace("One", "Other").replace("seq", "type")
    async with (
        followers([ada], document, operation="One", id=box.id) as some,
        followers([ada], document, operation="Other", id=box.id) as others,
    ):
        await box.did("LOG")
        assert [(await events.next())["events"] for events in some + others] == [[{"seq": 3}], [{"type": "LOG"}]]


async def test_what_is_shared_is_made_for_nobody(ada, bob, apollo, box, executed):
    """Not in the name of who came first; and by a context of its own, so that nothing old is told."""
    await w.share(ada, apollo, bob)
    async with followers([ada, bob], FOLLOW, id=box.id) as both:
        executed.clear()
        for _ in range(2):
            await box.did("LOG")
            for events in both:
                await events.next()
    contexts = [make_context() for _operation, _variables, make_context, _event in executed]
    assert [context.principal for context in contexts] == [auth.NOBODY] * 2
    assert contexts[0] is not contexts[1]


async def test_what_depends_on_who_asks_is_not_shared(world, ada, apollo):
    """An object behind an entry may show more to one member than to another, so that each has an execution."""
    async with followers([ada, ada], MINE, id=apollo) as both:
        assert hub_of(world)[0].groups == 0
        await w.ticket(ada, apollo)
        assert [(await events.next())["activities"][0]["seq"] for events in both] == [2, 2]


async def test_types_are_filtered_for_the_group_as_for_the_one(ada, box):
    """The cursor moves on past what was left out, and later answers hold what was asked for and nothing else."""
    follow = FOLLOW.replace("after: $after", "after: $after, types: [ERROR]")
    async with followers([ada, ada], follow, id=box.id) as both:
        await box.report(*(box.event("LOG") for _ in range(150)), box.event("ERROR"), box.event("LOG"))
        told = [await events.next() for events in both]
        await box.did("ERROR")
        again = [await events.next() for events in both]
    assert [[event["seq"] for event in payload["events"]] for payload in told + again] == [[153]] * 2 + [[155]] * 2


async def test_who_comes_while_others_write_misses_nothing(ada, box):
    """Replay alone, live together: at whatever moment one joins, every event comes once and in order."""
    total = 150

    async def keep_working():
        while box.reported < total - 2:
            await box.did("LOG", {"number": box.reported})

    async def reader():
        async with ada.following(FOLLOW, id=box.id) as events:
            seqs = []
            while len(seqs) < total:
                seqs += [event["seq"] for event in (await events.next())["events"]]
            return seqs

    working = asyncio.create_task(keep_working())
    readers = []
    while not working.done():
        readers.append(asyncio.create_task(reader()))
        await asyncio.sleep(0.1)
    assert all(seqs == list(range(1, total + 1)) for seqs in await asyncio.gather(*readers))


async def test_a_group_ends_with_its_last_member(world, ada, box):
    """However abruptly they leave: no group, no feed, no bell, no task stays."""
    tasks = len(asyncio.all_tasks())
    listeners = world.server.bus.listeners
    for _ in range(3):
        async with followers([ada] * 5, FOLLOW, id=box.id) as opened:
            for events in opened:
                events.ws.transport.abort()
    await until(lambda: (hub_of(world)[0].groups, world.server.feeds.count) == (0, 0))
    await until(lambda: world.server.bus.listeners == listeners and len(asyncio.all_tasks()) <= tasks)


async def test_who_reads_too_slowly_is_told_where_to_resume(world, ada, box, monkeypatch):
    """That one ends with SLOW_CONSUMER and its cursor; the others have everything, and so has it once it is back."""
    monkeypatch.setattr(hub_of(world)[0], "_room", Room(answers=256, size=1 << 16))
    async with followers([ada, ada], FOLLOW, id=box.id) as (slow, quick):
        slow.ws.transport.pause_reading()
        seen = []
        while len(seen) < 300:
            await box.did("LOG", {"text": secrets.token_hex(30_000)})  # which no compression makes small
            seen += [event["seq"] for event in (await quick.next())["events"]]
        slow.ws.transport.resume_reading()
        heard, message = [], await slow.message()
        while message["type"] == "next":
            heard += [event["seq"] for event in message["payload"]["data"]["sandboxEvents"]["events"]]
            message = await slow.message()
    error = message["payload"][0]["extensions"]
    assert (message["type"], error["code"]) == ("error", "SLOW_CONSUMER")
    async with ada.following(FOLLOW, id=box.id, after=error["cursor"]) as events:
        while heard[-1] < seen[-1]:
            heard += [event["seq"] for event in (await events.next())["events"]]
    assert heard == seen == list(range(3, 303))


@pytest.fixture
def live(world, ada, apollo):
    """Follows the project's feed by hand, for a member; each answer is a list of seqs."""
    hub = hub_of(world)[0]
    stream_id = ids.decode(apollo)[1]

    async def execute(batch):
        return Answer(json.dumps([row.seq for row in batch.rows]).encode())

    def follow(account, offer=lambda _answer: False):
        one = Live(
            feeds=world.server.feeds,
            source=Source(stream_id=stream_id, project_id=stream_id, table=Activity),
            after=None,
            tell=lambda batch: batch,
            rights=world.server.rights,
            reader=account.user.id,
        )
        return contextlib.aclosing(hub.follow(one, "a document", execute, offer))

    return follow


async def told_next(answers):
    async with asyncio.timeout(w.ANSWER_SECONDS):
        return json.loads((await anext(answers)).body)


def group_of(world):
    [group] = [shared.group for shared in hub_of(world)[0]._groups.values()]
    return group


async def test_nothing_is_offered_while_an_answer_is_on_its_way(world, ada, apollo, live):
    """Who has taken one and not come back may still be sending it, and what is offered would overtake it."""
    takes = [False, True, True]
    offered = []

    def offer(answer):
        offered.append(json.loads(answer.body))
        return takes.pop(0)

    async with live(ada, offer) as answers:
        told = [await told_next(answers)]
        on_its_way = asyncio.create_task(told_next(answers))
        await until(lambda: waits(world))
        await w.record(world.server, ids.decode(apollo)[1], "two")
        told.append(await on_its_way)
        await w.record(world.server, ids.decode(apollo)[1], "three")
        await until(lambda: group_of(world).next == 2)
        assert offered == [[2]]
        told.append(await told_next(answers))
    assert told == [[1], [2], [3]]


def waits(world):
    return all(member.waits for member in group_of(world)._members)


async def test_who_refuses_an_offer_is_told_all_the_same(world, ada, apollo, live):
    """At once: the answer may be the last one for a long time."""
    offered = []
    async with live(ada, offered.append) as answers:  # which says of none that it was sent
        await told_next(answers)
        following = asyncio.create_task(told_next(answers))
        await until(lambda: waits(world))
        await w.record(world.server, ids.decode(apollo)[1], "the last one")
        assert await following == [2]
    assert len(offered) == 1


async def test_who_is_removed_while_catching_up_is_told_nothing_later(ada, bob, apollo, live, monkeypatch):
    """Of a long past, too, which was there before: the right is looked at before each answer."""
    monkeypatch.setattr("app.feeds.PAGE", 1)
    await w.share(ada, apollo, bob)
    async with live(bob) as answers:
        assert await told_next(answers) == [1]
        await ada.do("removeMember", "project { id }", projectId=apollo, userId=bob.id)
        with pytest.raises(Forbidden):
            await told_next(answers)


async def test_who_is_removed_while_it_lags_is_told_nothing_later(world, ada, bob, apollo, live):
    """Although it is in the group's mailbox already, for those who stay."""
    await w.share(ada, apollo, bob)
    async with live(bob) as answers:
        await told_next(answers)
        on_its_way = asyncio.create_task(told_next(answers))
        await until(lambda: waits(world))
        await w.record(world.server, ids.decode(apollo)[1], "it is sending this one")
        await on_its_way
        await w.record(world.server, ids.decode(apollo)[1], "and this one waits")
        await until(lambda: group_of(world).next == 2)
        await ada.do("removeMember", "project { id }", projectId=apollo, userId=bob.id)
        with pytest.raises(Forbidden):
            await told_next(answers)


async def test_nothing_is_offered_behind_a_close(world, ada, box):
    """A connection that was sent away takes no offer, although its server would; the operation ends instead."""
    said, at_once, heard = [], [], asyncio.Queue()

    async def send(message):
        said.append(message)

    def send_now(text):
        at_once.append(json.loads(text))
        return True

    init = {"type": "connection_init", "payload": {"token": ada.token}}
    subscribe = {"type": "subscribe", "id": "1", "payload": {"query": FOLLOW, "variables": {"id": box.id}}}
    for message in (None, init, subscribe):
        heard.put_nowait({"type": "websocket.receive", "text": json.dumps(message)})
    extensions = {SEND_NOW: {"send": send_now}}
    scope = {"type": "websocket", "headers": [], "subprotocols": [PROTOCOL], "extensions": extensions}
    running = asyncio.create_task(world.server.endpoint(scope, heard.get, send))
    async with followers([ada], FOLLOW, id=box.id) as (other,):
        await until(lambda: '"caughtUp":true' in said[-1].get("text", "") and waits(world))
        await box.did("LOG")
        await other.next()
        assert [message["id"] for message in at_once] == ["1"]
        [one] = [open_ for open_ in world.server.endpoint._open if open_._receive == heard.get]
        one.drain()
        await until(lambda: said[-1]["type"] == "websocket.close")
        await box.did("LOG")
        await other.next()
        assert len(at_once) == 1
    heard.put_nowait({"type": "websocket.disconnect"})
    await running


async def test_an_answer_that_is_large_puts_nobody_behind(world, ada, box, monkeypatch):
    """Where each is larger than all may be together, a few are kept all the same; and no more than a few."""
    monkeypatch.setattr(hub_of(world)[0], "_room", Room(answers=256, size=1))
    async with followers([ada], FOLLOW, id=box.id) as (one,):
        [group] = [shared.group for shared in hub_of(world)[0]._groups.values()]
        for seq in range(3, 13):
            await box.did("LOG")
            assert (await one.next())["events"][0]["seq"] == seq
            assert group.next - group.first == min(seq - 2, 4)


async def test_a_group_that_fails_ends_its_members_alone(world, ada, box, monkeypatch):
    """Each is told, may resume from where it stands, and finds a group that works."""
    execution = hub_of(world)[1]

    async def broken(*_):
        raise RuntimeError("internal words")

    async with followers([ada, ada], FOLLOW, id=box.id) as both:
        with monkeypatch.context() as patch:
            patch.setattr(execution, "event", broken)
            await box.did("LOG")
            ends = [await events.message() for events in both]
    assert all(end["type"] == "error" and "internal words" not in str(end) for end in ends)
    async with followers([ada], FOLLOW, id=box.id) as (one,):
        await box.did("LOG")
        assert (await one.next())["events"][0]["seq"] == 4


async def test_a_restored_backup_resets_every_member(world, ada, box):
    """All hear why, and go on in the stream as it is now."""
    world.server.feeds._poll_seconds = 0.05
    async with followers([ada, ada], FOLLOW, id=box.id) as both:
        async with world.server.db.writing() as session:
            stream = await session.get_one(Stream, ids.decode(box.id)[1])
            stream.epoch = "ffffffffffff"
        told = [await events.next() for events in both]
        await box.did("LOG")
        after = [await events.next() for events in both]
    assert all("restored" in payload["reset"]["reason"] for payload in told)
    assert [[event["seq"] for event in payload["events"]] for payload in told + after] == [[1, 2]] * 2 + [[3]] * 2


async def test_a_stream_that_went_back_resets_every_member(world, ada, box):
    """With the epoch that it had, too; and what the group keeps begins anew with it."""
    world.server.feeds._poll_seconds = 0.05
    async with followers([ada, ada], FOLLOW, id=box.id) as both:
        await box.did("LOG")
        for events in both:
            await events.next()
        async with world.server.db.writing() as session:
            await session.execute(delete(Event).where(Event.stream_id == box.key, Event.seq > 1))
            (await session.get_one(Stream, box.key)).last_seq = 1
        told = [await events.next() for events in both]
        await box.did("LOG")
        after = [await events.next() for events in both]
        [group] = [shared.group for shared in hub_of(world)[0]._groups.values()]
        assert group._size == len(group._frames[0].answer.body)
    assert all("ahead" in payload["reset"]["reason"] for payload in told)
    assert [[event["seq"] for event in payload["events"]] for payload in told + after] == [[1]] * 2 + [[2]] * 2


@pytest.mark.parametrize(("epoch", "seq"), [("ffffffffffff", 0), ("ffffffffffff", 40), (None, 40)])
async def test_who_joins_while_a_stream_goes_back_waits_for_the_group(world, apollo, box, monkeypatch, epoch, seq):
    """It does not look again and again until the group has heard of it too: others would have no turn meanwhile."""
    turns, read = 0, Reader.next

    async def counted(reader, **given):
        nonlocal turns
        turns += 1
        assert turns < 100
        return await read(reader, **given)

    async def execute(batch):
        return batch

    monkeypatch.setattr(Reader, "next", counted)
    source = Source(stream_id=box.key, project_id=ids.decode(apollo)[1], table=Event)
    live, ear = SimpleNamespace(tell=lambda batch: batch), Ear()
    async with world.server.feeds.open(source) as feed:
        group = SimpleNamespace(place=Cursor(epoch or feed.tip.epoch, seq))  # where it stood before
        reader = Reader(feed, source)
        await reader.begin(None)
        joining = asyncio.create_task(all_of(_caught_up(group, reader, live, execute, ear)))
        await until(lambda: ear.waits or joining.done())
        group.place = feed.tip
        ear.wake()
        assert [row.seq for batch in await joining for row in batch.rows] == [1, 2]


async def test_what_a_group_does_while_a_member_sends_is_not_missed(world, apollo, box):
    """One who sends what it has while its group goes on does not wait for the group to go on again."""
    source = Source(stream_id=box.key, project_id=ids.decode(apollo)[1], table=Event)
    live, ear = SimpleNamespace(tell=lambda batch: batch), Ear()

    async def execute(batch):
        return batch

    async with world.server.feeds.open(source) as feed:
        group = SimpleNamespace(place=feed.tip)
        reader = Reader(feed, source)
        await reader.begin(feed.tip)
        joining = _caught_up(group, reader, live, execute, ear)
        assert (await anext(joining)).rows == ()
        await box.did("LOG")
        await until(lambda: feed.tip.seq == 3)
        group.place = feed.tip
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert [row.seq for batch in await all_of(joining) for row in batch.rows] == [3]


async def all_of(answers):
    return [answer async for answer in answers]


async def box_page(account, box):
    async with account.following(FOLLOW, id=box.id) as events:
        return await events.next()
