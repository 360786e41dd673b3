"""GraphQL over server-sent events: the wire format, resuming, and every way in which a stream ends."""

import asyncio
import json

import pytest

from schema.answers import Answer
from schema.errors import Whose
from schema.sse import EventStream
from tests.schema import toy

STREAM = {"accept": "text/event-stream"}
TICKS = {"query": "subscription { ticks { number } }"}
FOREVER = {"query": "subscription { forever }"}


def parsed(text):
    """The events of a stream as (event, id, data); comments are passed over."""
    events = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if line and not line.startswith(":"))
        if fields:
            data = json.loads(fields["data"]) if fields["data"] else None
            events.append((fields["event"], fields.get("id"), data))
    return events


async def read(client, served, request, **headers):
    response = await client.post(served.url, json=request, headers={**STREAM, **headers})
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    return parsed(response.text)


async def test_events_carry_their_cursors(served, client):
    """Each event has the source's cursor as its id, though the client did not select it; the end is said."""
    assert await read(client, served, TICKS) == [
        ("next", "c0", {"data": {"ticks": {"number": 0}}}),
        ("next", "c1", {"data": {"ticks": {"number": 1}}}),
        ("next", "c2", {"data": {"ticks": {"number": 2}}}),
        ("complete", None, None),
    ]


async def test_a_client_resumes_where_it_was(served, client):
    """Last-Event-ID, which browsers send by themselves, reaches the source."""
    events = await read(client, served, TICKS, **{"last-event-id": "c1"})
    assert [id_ for _, id_, _ in events] == ["c2", None]


async def test_get_streams_too(served, client):
    """A browser's EventSource can only GET."""
    response = await client.get(served.url, params=TICKS, headers=STREAM)
    assert [event for event, _, _ in parsed(response.text)] == ["next", "next", "next", "complete"]


async def test_single_answers_come_as_a_stream_of_one(served, client):
    """Queries and mutations are answered in the only form that the client accepts."""
    assert await read(client, served, {"query": "{ hello }"}) == [
        ("next", None, {"data": {"hello": "hello you"}}),
        ("complete", None, None),
    ]
    await read(client, served, {"query": "mutation { add(number: 1) }"})
    assert served.toy.added == [1]


async def test_json_is_preferred_for_single_answers(served, client):
    """A client that accepts both gets a stream only for what streams."""
    both = {"accept": "application/json, text/event-stream"}
    assert (await client.post(served.url, json={"query": "{ hello }"}, headers=both)).json() == {
        "data": {"hello": "hello you"}
    }
    response = await client.post(served.url, json=TICKS, headers=both)
    assert response.headers["content-type"].startswith("text/event-stream")


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("subscription {", "BAD_USER_INPUT"),
        ("subscription { nope }", "BAD_USER_INPUT"),
        ("subscription ($n: Int!) { ticks(to: $n) { number } }", "BAD_USER_INPUT"),
        ("subscription { refuses }", "NOT_FOUND"),
    ],
)
async def test_a_request_error_is_one_event(served, client, query, code):
    """EventSource shows no status and no body to its page: errors come as an event."""
    [(event, _, data), last] = await read(client, served, {"query": query})
    assert (event, last) == ("next", ("complete", None, None))
    assert [error["extensions"]["code"] for error in data["errors"]] == [code]


async def test_a_source_that_breaks_is_masked(served, client, logs):
    """What was sent stays valid; the last event says that something went wrong on our side, and the log what."""
    events = await read(client, served, {"query": "subscription { breaks }"})
    assert events[0][2] == {"data": {"breaks": 1}}
    assert events[1][2]["errors"][0]["extensions"]["code"] == "INTERNAL"
    assert events[2][0] == "complete"
    assert [entry["event"] for entry in logs] == ["operation_failed"]


@pytest.mark.parametrize(("field", "code"), [("few", "LIMIT_REACHED"), ("written", "INTERNAL")])
async def test_an_event_that_cannot_be_told_ends_the_stream_before_it(served, client, field, code):
    """Its cursor is not sent: who resumes from the last one finds it still to come."""
    events = await read(client, served, {"query": f"subscription {{ ticks {{ {field} }} }}"})
    assert [(event, id_) for event, id_, _ in events] == [
        ("next", "c0"),
        ("next", "c1"),
        ("next", None),
        ("complete", None),
    ]
    assert "data" not in events[2][2]
    assert [error["extensions"]["code"] for error in events[2][2]["errors"]] == [code]


async def test_a_stream_needs_credentials(served, client):
    """Without them there is no stream, but a 401."""
    response = await client.post(served.url, json=TICKS, headers={**STREAM, "authorization": "Bearer wrong"})
    assert response.status_code == 401


async def test_a_client_that_vanishes_ends_its_source(served, client):
    """The source's finally blocks run when the connection is gone."""
    async with client.stream("POST", served.url, json=FOREVER, headers=STREAM):
        await toy.until(lambda: served.toy.streams == served.endpoint.connections == 1)
    await toy.until(lambda: served.toy.streams == served.endpoint.connections == 0)


async def test_a_revoked_principal_is_cut_off(served, client):
    """The stream ends at once and says why."""
    streaming = asyncio.create_task(read(client, served, FOREVER))
    await toy.until(lambda: served.toy.streams == 1)
    served.toy.revoked.set()
    events = await streaming
    assert events[-2][2]["errors"][0]["extensions"]["code"] == "UNAUTHENTICATED"
    assert events[-1][0] == "complete"
    assert served.toy.streams == 0


async def test_draining_lets_clients_come_back(served, client):
    """The stream ends without `complete`, which would tell the client that it has seen everything."""
    streaming = asyncio.create_task(read(client, served, FOREVER))
    await toy.until(lambda: served.toy.streams == 1)
    query = asyncio.create_task(client.post(served.url, json={"query": "{ later }"}))
    served.endpoint.drain()
    assert [event for event, _, _ in await streaming] == ["next"]
    assert (await query).json() == {"data": {"later": "later"}}
    assert await read(client, served, FOREVER) == []


async def test_a_stream_has_one_answer(served, client, caplog):
    """When the time to drain is over and a stream is cut off, nobody tries to begin another answer behind it."""
    async with client.stream("POST", served.url, json=FOREVER, headers=STREAM):
        await toy.until(lambda: served.toy.streams == 1)
        served.endpoint.drain()
        for task in served.server.server_state.tasks:
            task.cancel()
        await toy.until(lambda: not served.server.server_state.tasks)
    assert [record.exc_info for record in caplog.records] == [None]


async def test_silence_is_filled_with_comments():
    """A quiet stream is kept open by comments, which no client takes for events."""
    sent = []
    gone = asyncio.Event()

    async def receive():
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message.get("body"))

    async def quiet():
        await asyncio.get_running_loop().create_future()
        yield Answer(b"{}")

    one = toy.Toy()
    often = {"heartbeat_seconds": 0.01, "write_seconds": 0.02}
    stream = EventStream(receive, send, quiet(), lambda: one.until_revoked(None), Whose("-"), **often)
    running = asyncio.create_task(stream.run())
    await toy.until(lambda: sent.count(b":\n\n") >= 10)
    gone.set()
    await running
    assert set(sent) == {None, b":\n\n"}
