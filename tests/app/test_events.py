"""What workers report: taken once, in order and without a hole, however often and from wherever it is sent."""

import asyncio
import hashlib
from datetime import UTC, datetime

import orjson
import pytest
from sqlalchemy import select

from app import events, ids, streams
from app.enums import EventSource, SandboxEventType
from app.errors import InvalidInput, Unauthenticated
from app.masking import Mask
from app.models import Event, Stream, Task
from tests.app.claimed import begin
from tests.schema import boxes
from tests.servers import shared_world

BEGUN = datetime(2026, 1, 31, 12, tzinfo=UTC)


def event(number, text="Working.", **given):
    told = {"producer_seq": number, "type": SandboxEventType.LOG, "occurred_at": BEGUN, "payload": {"text": text}}
    return {**told, **given}


@pytest.fixture(scope="module")
async def world(postgres):
    async with shared_world(postgres, orchestrator_enabled=False) as running:
        yield running


@pytest.fixture(scope="module")
async def ada(world):
    return await world.account("ada")


@pytest.fixture
def report(world, box):
    """The worker reports these; answers how far it was taken, and what was refused."""

    async def reported(*batch, heartbeat=True):
        async with begin(world) as tx:
            taken = await events.report(tx, box.id, events.read(batch), heartbeat=heartbeat, mask=Mask(()))
        return taken.accepted_through, [error.message for error in taken.errors]

    return reported


@pytest.fixture
def stored(world, box):
    """What the worker's events are in the sandbox's stream, by its own numbers."""

    async def texts():
        async with world.server.db.reading() as session:
            found = await session.scalars(
                select(Event).where(Event.stream_id == box.id, Event.producer_seq.is_not(None)).order_by(Event.seq)
            )
            return [(one.producer_seq, one.payload.get("text")) for one in found]

    return texts


async def test_the_same_again_is_harmless(report, stored):
    """All of it, or some of it together with something new."""
    assert await report(event(1, "a"), event(2, "b")) == (2, [])
    assert await report(event(1, "a"), event(2, "b")) == (2, [])
    assert await report(event(2, "b"), event(3, "c")) == (3, [])
    assert await report(event(3, "c"), event(3, "c")) == (3, [])

    assert await stored() == [(1, "a"), (2, "b"), (3, "c")]


async def test_a_hole_is_answered_with_what_is_expected(report, stored):
    """What comes before it is taken, what comes after it is not."""
    assert await report(event(1, "a"), event(3, "c")) == (1, ["2 is expected, not 3."])
    assert await report(event(5, "e")) == (1, ["2 is expected, not 5."])
    assert await report(event(2, "b"), event(3, "c")) == (3, [])

    assert await stored() == [(1, "a"), (2, "b"), (3, "c")]


@pytest.mark.parametrize(
    "other",
    [
        {"text": "other"},
        {"type": SandboxEventType.MESSAGE},
        {"turn": 7},
        {"source": EventSource.WORKER},
        {"occurred_at": datetime(2026, 2, 1, tzinfo=UTC)},
    ],
    ids=lambda other: next(iter(other)),
)
async def test_other_content_is_refused(report, stored, other):
    """A number stands for one event for ever, also within one batch; what is new in the batch is taken."""
    refusal = ["1 was reported before with other content."]
    assert await report(event(1), event(1, **other)) == (1, refusal)
    assert await report(event(1, **other), event(2)) == (2, refusal)

    assert await stored() == [(1, "Working."), (2, "Working.")]


@pytest.mark.parametrize("number", [0, -1])
async def test_numbers_begin_at_one(report, stored, number):
    """An event without a number of its own would be lost without a word."""
    assert await report(event(number)) == (0, [f"1 is expected, not {number}."])
    assert await stored() == []


@pytest.mark.parametrize("kind", sorted(events.SERVERS_OWN))
async def test_the_servers_own_types_are_refused(report, stored, kind):
    """Nobody else says how a sandbox stands; what came before it is taken."""
    assert await report(event(1), event(2, type=kind)) == (1, [f"{kind.name} is written by the server alone."])
    assert await stored() == [(1, "Working.")]


@pytest.mark.parametrize("source", sorted(set(EventSource) - events.WORKERS_OWN))
async def test_the_servers_own_sources_are_refused(report, stored, source):
    """A worker speaks for its agent and itself."""
    through, [refusal] = await report(event(1, source=source))
    assert (through, refusal[:8], await stored()) == (0, "A worker", [])


async def test_an_attempt_that_has_ended_is_refused(box, report, stored):
    """Its worker hears that nobody waits for it any more."""
    await report(event(1))
    await box.end()
    with pytest.raises(Unauthenticated):
        await report(event(2))
    assert await stored() == [(1, "Working.")]


@pytest.mark.parametrize(
    ("text", "kept"),
    [("a\0b", "a\ufffdb"), ("a\ud800b", "a\ufffdb"), ("\udc00", "\ufffd"), ("ü \U0001f600", "ü \U0001f600")],
    ids=["NUL", "high", "low", "whole"],
)
async def test_what_no_row_can_hold_is_replaced(report, stored, text, kept):
    """In values and in names; the same again is still the same."""
    odd = event(1, payload={"text": text, text: [text, {"inner": text}]})
    assert await report(odd) == (1, [])
    assert await report(odd) == (1, [])
    assert await stored() == [(1, kept)]


async def test_odd_json_is_taken_over_http(ada, apollo):
    """Half a surrogate pair beside a number that no machine word holds: a worker must not be stuck with it."""
    spawned = await boxes.spawn(ada, apollo)
    odd = spawned.event("LOG", {"text": "a\ud800\0", "size": 1 << 70, "low": -(1 << 70), "long": 10**400})
    answer = await spawned.report(odd)
    assert (answer["acceptedThrough"], answer["errors"]) == (1, [])
    assert (await spawned.report(odd))["errors"] == []


async def test_a_batch_has_a_limit(report):
    """500 are taken, and one more is refused as a whole."""
    with pytest.raises(InvalidInput, match="500"):
        await report(*(event(n) for n in range(1, 502)))
    assert await report(*(event(n) for n in range(1, 501))) == (500, [])


async def test_the_first_report_begins_the_attempt(world, box, report):
    """Whatever it says, a heartbeat too: the sandbox runs, and so does its task."""
    assert (await box.read()).status.name == "PROVISIONING"
    await report()

    sandbox = await box.read()
    async with world.server.db.reading() as session:
        task = await session.get_one(Task, sandbox.task_id)
    assert (sandbox.status.name, task.status.name) == ("RUNNING", "RUNNING")
    assert sandbox.started_at is not None is not task.started_at


async def test_heartbeats_are_counted(box, report, later):
    """How many, when the last, and the longest time without one; reports that are none count as life only."""
    await report()
    with later("30 seconds"):
        await report()
    with later("100 seconds"):
        await report(event(1), heartbeat=False)
    with later("120 seconds"):
        await report()
    with later("125 seconds"):
        await report()

    sandbox = await box.read()
    assert sandbox.heartbeats == 4
    assert 89_000 <= sandbox.longest_gap_ms <= 92_000
    assert 124 <= (sandbox.last_heartbeat_at - sandbox.first_heartbeat_at).total_seconds() <= 128


async def test_every_report_renews_the_lease(box, report, later):
    """Whoever reports lives."""
    before = (await box.read()).lease_until
    with later("1 minute"):
        await report(heartbeat=False)
    assert (await box.read()).lease_until > before


async def test_eight_senders_leave_no_hole(world, box, report, stored):
    """The same events from eight sides at once, in batches of all sizes, while the server writes its own."""

    async def send(size):
        for first in range(1, 41, size):
            through, errors = await report(*(event(n, str(n)) for n in range(first, min(first + size, 41))))
            assert not errors or through < first

    async def speak():
        for number in range(10):
            async with begin(world) as tx:
                tx.emit(box.id, SandboxEventType.LOG, {"text": f"server {number}"})

    await asyncio.gather(speak(), *(send(size) for size in (1, 2, 3, 5, 7, 11, 13, 40)))
    assert await stored() == [(n, str(n)) for n in range(1, 41)]
    async with world.server.db.reading() as session:
        seqs = list(await session.scalars(select(Event.seq).where(Event.stream_id == box.id).order_by(Event.seq)))
        stream = await session.get_one(Stream, box.id)
    assert seqs == list(range(1, stream.last_seq + 1))
    assert stream.last_seq == 40 + 10 + 2  # and PROVISIONING and RUNNING


async def test_events_of_the_servers_own_in_the_middle(world, box, report, stored):
    """What is added to the stream between the look at its end and the commit is counted: no hole, and a true digest."""
    await report(event(1))
    async with begin(world) as tx:
        await events.report(tx, box.id, events.read([event(2), event(3)]), heartbeat=True, mask=Mask(()))
        async with begin(world) as other:
            other.emit(box.id, SandboxEventType.LOG, {"text": "in the middle"})
    assert await stored() == [(1, "Working."), (2, "Working."), (3, "Working.")]
    async with world.server.db.reading() as session:
        rows = (await session.scalars(select(Event).where(Event.stream_id == box.id).order_by(Event.seq))).all()
        stream = await session.get_one(Stream, box.id)
    assert [row.seq for row in rows] == list(range(1, stream.last_seq + 1))
    assert rows[-3].payload["text"] == "in the middle"
    assert stream.digest == streams.chained(bytes(32), (ids.encode("event", row.id) for row in rows))


@pytest.mark.parametrize("payload", [{"b": "ü", "a": [1, 2.5, None]}, {"a\0": "\ud800", "n": 1 << 70}, "text", [1]])
async def test_hashes_stay_what_they_are(world, box, report, payload):
    """By them what an earlier release took is known again: type, source, turn, moment and payload, keys in order."""
    given = event(1, payload=payload, turn=3, source=EventSource.WORKER)
    assert await report(given) == (1, [])
    told = [given["type"], given["source"], given["turn"], given["occurred_at"], events.storable(payload)]
    async with world.server.db.reading() as session:
        [hashed] = await session.scalars(select(Event.hash).where(Event.stream_id == box.id, Event.producer_seq == 1))
    assert hashed == hashlib.sha256(orjson.dumps(told, option=orjson.OPT_SORT_KEYS)).digest()


async def test_waiting_and_going_on(box, report):
    """An agent that waits for a message is WAITING until something else happens."""
    await report(event(1))
    await report(event(2, type=SandboxEventType.WAITING))
    assert (await box.read()).status.name == "WAITING"
    await report(event(3))
    assert (await box.read()).status.name == "RUNNING"


async def test_secrets_are_not_stored(world, box, stored):
    """What the mask knows is taken out before anything is written, and the same again is still the same."""
    secret = "s3cret-enough-to-be-told"
    for _ in range(2):
        async with begin(world) as tx:
            batch, mask = events.read([event(1, f"It is {secret}.")]), Mask([secret])
            taken = await events.report(tx, box.id, batch, heartbeat=True, mask=mask)
        assert taken.errors == []
    assert await stored() == [(1, "It is •••.")]


async def test_two_first_signs_of_life_are_both_heard(world, box, report):
    """One lets the attempt begin while the other has found it not begun: neither is told that it has ended."""
    async with begin(world) as tx:
        read = tx.session.scalar

        async def read_late(*given):
            tx.session.scalar = read
            assert await report() == (0, [])
            return await read(*given)

        tx.session.scalar = read_late
        taken = await events.report(tx, box.id, events.read([event(1)]), heartbeat=True, mask=Mask(()))
    assert taken.accepted_through == 1
