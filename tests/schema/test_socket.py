"""graphql-transport-ws: every message, right or wrong, has one defined answer."""

import asyncio
import contextlib
import gc
import json
import random

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.protocol import State

from app.cli.lines import WebSocketLine
from app.settings import Settings
from schema.errors import MASKED
from tests.schema import toy

FOREVER = {"query": "subscription { forever }"}
HELLO = {"query": "{ hello }"}


async def open_stream(socket, id_):
    await socket.subscribe(id_, FOREVER)
    assert await socket.hear() == {"id": id_, "type": "next", "payload": {"data": {"forever": 1}}}


def frame(**message):
    return json.dumps(message)


async def test_all_three_kinds_of_operations(served, talk):
    """Queries and mutations answer once, a subscription as long as it lasts; each ends with complete."""
    async with talk(served) as socket:
        for id_, query, results in (
            ("q", "{ later }", [{"later": "later"}]),
            ("m", "mutation { add(number: 2) }", [{"add": 2}]),
            ("s", "subscription { ticks(to: 2) { number } }", [{"ticks": {"number": 0}}, {"ticks": {"number": 1}}]),
        ):
            await socket.subscribe(id_, {"query": query, "variables": None, "operationName": None, "extensions": None})
            for result in results:
                assert await socket.hear() == {"id": id_, "type": "next", "payload": {"data": result}}
            assert await socket.hear() == {"id": id_, "type": "complete"}


async def test_an_event_with_errors_does_not_end_the_stream(served, talk):
    """A field that fails in one event is an error of that event."""
    async with talk(served) as socket:
        await socket.subscribe("1", {"query": "subscription { ticks(to: 3) { number odd } }"})
        events = [(await socket.hear())["payload"] for _ in range(3)]
        assert ["errors" in event for event in events] == [False, True, False]
        assert events[1]["errors"][0]["extensions"]["code"] == "NOT_FOUND"
        assert (await socket.hear())["type"] == "complete"


async def test_each_event_has_a_context_of_its_own(served, talk):
    """What one event's resolvers loaded is not what the next ones see."""
    async with talk(served) as socket:
        await socket.subscribe("1", {"query": "subscription { ticks(to: 3) { context } }"})
        assert len({(await socket.hear())["payload"]["data"]["ticks"]["context"] for _ in range(3)}) == 3


@pytest.mark.parametrize(
    "message",
    [
        *["[]", '"x"', "1", "null", "{", "", "\ud7ff", "{}", '{"type":1}', '{"type":"wat"}', b'{"type":"ping"}'],
        *[frame(type="ping", payload=1), frame(type="ping", payload=[])],
        *[frame(type="complete"), frame(type="complete", id=1), frame(type="complete", id="")],
        *[frame(type="subscribe", payload=HELLO), frame(type="subscribe", id=[1], payload=HELLO)],
        *[frame(type="subscribe", id=1, payload=HELLO), frame(type="subscribe", id="", payload=HELLO)],
        *[frame(type="subscribe", id="1"), frame(type="subscribe", id="1", payload="x")],
        *[frame(type="subscribe", id="1", payload={}), frame(type="subscribe", id="1", payload={"query": 5})],
        *[frame(type="subscribe", id="1", payload={"query": ""}), frame(type="subscribe", id="1", payload=[HELLO])],
        frame(type="subscribe", id="1", payload={**HELLO, "variables": "x"}),
        frame(type="subscribe", id="1", payload={**HELLO, "operationName": 7}),
        frame(type="subscribe", id="1", payload={**HELLO, "extensions": []}),
        *['{"type":"ping","payload":' + '{"a":' * 3_000 + "1" + "}" * 3_001, "[" * 5_000],
    ],
)
async def test_a_malformed_message_closes_with_4400(served, talk, message):
    """Whatever is not a message of the protocol is answered with its close code and a reason."""
    async with talk(served) as socket:
        await socket.say(message)
        code, reason = await socket.closed()
        assert code == 4400
        assert reason


async def test_a_long_reason_is_cut(served, talk):
    """A close frame holds 123 bytes; a longer reason must not break the connection instead."""
    async with talk(served) as socket:
        await socket.say({"type": "\u00e4" * 300})
        code, reason = await socket.closed()
        assert code == 4400
        assert 100 < len(reason.encode()) <= 123


async def test_a_message_has_a_largest_size(talk):
    """What the server in front lets through is still measured here."""
    async with toy.serve(toy.Settings(frame_bytes=1_000)) as served, talk(served) as socket:
        await socket.say({"type": "ping", "payload": {"x": "x" * 1_000}})
        assert (await socket.closed())[0] == 4400


@pytest.mark.parametrize("before", [True, False])
async def test_pings_are_echoed(served, talk, before):
    """A pong carries the payload of its ping, before and after the initialisation; a pong needs no answer."""
    async with talk(served, init=not before) as socket:
        await socket.say({"type": "pong", "payload": {"b": 2}})
        await socket.say({"type": "ping", "payload": {"a": 1}})
        await socket.say({"type": "ping"})
        assert await socket.hear() == {"type": "pong", "payload": {"a": 1}}
        assert await socket.hear() == {"type": "pong"}


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        (None, 4401),
        ({}, 4401),
        ({"authorization": 7}, 4401),
        ({"token": "wrong"}, 4403),
        ({"Authorization": "Bearer wrong"}, 4403),
        ([], 4400),
        ("x", 4400),
        ({"token": "broken"}, 1013),
    ],
)
async def test_a_refused_initialisation(served, talk, payload, code):
    """Nothing brought is 4401, something wrong is 4403; when we cannot tell, the client is to try later."""
    async with talk(served, init=False) as socket:
        await socket.say({"type": "connection_init", "payload": payload})
        assert (await socket.closed())[0] == code


@pytest.mark.parametrize(
    "payload", [{"token": "right"}, {"authorization": "Bearer right"}, {"Authorization": "bearer right"}]
)
async def test_a_token_in_the_payload(served, talk, payload):
    """Browsers cannot set headers on a handshake and say it in the first message."""
    async with talk(served, payload=payload) as socket:
        await socket.subscribe("1", HELLO)
        assert (await socket.hear())["payload"] == {"data": {"hello": "hello you"}}


async def test_a_token_in_the_handshake(served, talk):
    """Programs send the usual header, and a null payload."""
    async with talk(served, init=False, headers={"authorization": "Bearer right"}) as socket:
        await socket.say({"type": "connection_init", "payload": None})
        assert await socket.hear() == {"type": "connection_ack"}


async def test_a_cookie_needs_an_origin_and_the_mark(served, talk):
    """A page of ours may use the cookie; without Origin, or without the key that only our code sends, it is refused."""
    own = {"cookie": "omoi_session=right", "origin": toy.ORIGIN}
    async with talk(served, payload={"omoi-client": "web"}, headers=own):
        pass
    for headers, payload in ((own, {}), ({"cookie": "omoi_session=right"}, {"omoi-client": "web"})):
        async with talk(served, init=False, headers=headers) as socket:
            await socket.say({"type": "connection_init", "payload": payload})
            assert (await socket.closed())[0] == 4403


async def test_a_foreign_page_is_refused_before_the_socket_opens(served, talk):
    """The handshake of an origin that is not ours is an HTTP 403."""
    with pytest.raises(InvalidStatus) as refused:
        async with talk(served, headers={"origin": "https://foreign.example"}):
            pass
    assert refused.value.response.status_code == 403


@pytest.mark.parametrize("subprotocols", [["graphql-ws"], ["nope", "other"], []])
async def test_other_subprotocols_close_with_4406(served, talk, subprotocols):
    """The code arrives, also at clients that insist on a subprotocol; the legacy protocol is not spoken."""
    async with talk(served, init=False, subprotocols=subprotocols) as socket:
        assert socket.socket.subprotocol == (subprotocols[0] if subprotocols else None)
        assert (await socket.closed())[0] == 4406


async def test_our_subprotocol_is_chosen_among_others(served, talk):
    """A client may offer several."""
    async with talk(served, subprotocols=["graphql-ws", "graphql-transport-ws"]) as socket:
        assert socket.socket.subprotocol == "graphql-transport-ws"


async def test_the_order_of_initialisation(served, talk):
    """Subscribing before the acknowledgement is 4401, initialising twice 4429."""
    async with talk(served, init=False) as socket:
        await socket.subscribe("1", HELLO)
        assert (await socket.closed())[0] == 4401
    async with talk(served) as socket:
        await socket.say({"type": "connection_init"})
        assert (await socket.closed())[0] == 4429


async def test_silence_is_closed_with_4408(talk):
    """A socket that never initialises does not stay."""
    async with toy.serve(toy.Settings(socket_init_seconds=0.05)) as served, talk(served, init=False) as socket:
        assert (await socket.closed())[0] == 4408


async def test_a_used_id_closes_with_4409_until_it_is_free(served, talk):
    """An id names one running operation; it is free again when the operation is over."""
    async with talk(served) as socket:
        for _ in range(3):
            await socket.subscribe("1", HELLO)
            assert [(await socket.hear())["type"] for _ in range(2)] == ["next", "complete"]
        await open_stream(socket, "1")
        await socket.subscribe("1", HELLO)
        code, reason = await socket.closed()
        assert (code, reason) == (4409, "Subscriber for 1 already exists")


async def test_complete_ends_the_source(served, talk):
    """The source's finally blocks run, the id is free at once, and an unknown id is no mistake."""
    async with talk(served) as socket:
        await open_stream(socket, "1")
        assert served.toy.streams == 1
        await socket.say({"type": "complete", "id": "1"})
        await socket.say({"type": "complete", "id": "other"})
        await socket.subscribe("1", HELLO)
        assert (await socket.hear())["payload"] == {"data": {"hello": "hello you"}}
        await toy.until(lambda: served.toy.streams == 0)


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        ({"query": "subscription {"}, "BAD_USER_INPUT"),
        ({"query": "{ a } " + "x" * 300}, "BAD_USER_INPUT"),
        ({"query": "{ nope }"}, "BAD_USER_INPUT"),
        ({"query": "query A { hello }", "operationName": "B"}, "BAD_USER_INPUT"),
        ({"query": "query ($n: Int!) { items(first: $n) { total } }"}, "BAD_USER_INPUT"),
        ({"query": "subscription ($n: Int!) { ticks(to: $n) { number } }"}, "BAD_USER_INPUT"),
        (
            {"query": "subscription ($x: Boolean!) { forever @skip(if: $x) }", "variables": {"x": True}},
            "BAD_USER_INPUT",
        ),
        ({"query": "subscription { refuses }"}, "NOT_FOUND"),
        ({"query": "{ hello " * 500}, "COST_EXCEEDED"),
        ({"query": "{ hello(name: " + json.dumps("x" * 70_000) + ") }"}, "COST_EXCEEDED"),
        ({"query": "", "extensions": {"persistedQuery": {"sha256Hash": "0" * 64}}}, "PERSISTED_QUERY_NOT_FOUND"),
    ],
)
async def test_a_failing_operation_leaves_the_others_alone(served, talk, payload, code):
    """It ends with one error message under its own id."""
    async with talk(served) as socket:
        await open_stream(socket, "other")
        await socket.subscribe("1", payload)
        message = await socket.hear()
        assert (message["id"], message["type"]) == ("1", "error")
        assert {error["extensions"]["code"] for error in message["payload"]} == {code}
        assert all(error["extensions"]["requestId"] for error in message["payload"])
        await socket.subscribe("1", HELLO)
        assert (await socket.hear())["type"] == "next"
        assert served.toy.streams == 1


async def test_a_source_that_breaks_is_masked(served, talk, logs):
    """What was sent stays valid, then the stream ends with an error that tells nothing; the log tells all."""
    async with talk(served) as socket:
        await socket.subscribe("1", {"query": "subscription Breaks { breaks }"})
        assert (await socket.hear())["payload"] == {"data": {"breaks": 1}}
        message = await socket.hear()
        assert (message["type"], message["payload"][0]["message"]) == ("error", MASKED)
        [entry] = [entry for entry in logs if entry["event"] == "operation_failed"]
        assert (entry["operation"], entry["request_id"]) == ("Breaks", message["payload"][0]["extensions"]["requestId"])


async def test_operations_at_once_are_bounded(talk):
    """One more than a socket carries is an error for that id; when one has ended there is room again."""
    async with toy.serve(toy.Settings(socket_operations=3)) as served, talk(served) as socket:
        for number in range(3):
            await open_stream(socket, str(number))
        await socket.subscribe("3", HELLO)
        message = await socket.hear()
        assert (message["id"], message["payload"][0]["extensions"]["code"]) == ("3", "RATE_LIMITED")
        await socket.say({"type": "complete", "id": "0"})
        await toy.until(lambda: served.toy.streams == 2)
        await socket.subscribe("3", HELLO)
        assert (await socket.hear())["type"] == "next"


async def test_a_revoked_principal_is_cut_off(served, talk):
    """Every stream ends at once, saying why, and whatever is asked after that is refused for the same reason."""
    async with talk(served) as socket:
        await open_stream(socket, "1")
        await open_stream(socket, "2")
        served.toy.revoked.set()
        ended = [await socket.hear(), await socket.hear()]
        assert {(message["id"], message["type"]) for message in ended} == {("1", "error"), ("2", "error")}
        assert {message["payload"][0]["extensions"]["code"] for message in ended} == {"UNAUTHENTICATED"}
        await toy.until(lambda: served.toy.streams == 0)
        await socket.subscribe("3", HELLO)
        assert (await socket.hear())["payload"][0]["message"] == "The token was revoked."


async def test_draining_sends_everybody_away_with_1012(served, talk):
    """Sockets that are open, those still initialising and those to come are told to come back elsewhere."""
    async with talk(served) as socket, talk(served, init=False) as early:
        await open_stream(socket, "1")
        assert served.endpoint.connections == 2
        served.endpoint.drain()
        assert (await socket.closed())[0] == 1012
        assert (await early.closed())[0] == 1012
        async with talk(served, init=False) as late:
            assert (await late.closed())[0] == 1012
        await toy.until(lambda: served.toy.streams == served.endpoint.connections == 0)


async def test_those_who_are_sent_away_leave_one_after_the_other(talk, logs, monkeypatch):
    """Lest all come back elsewhere in one moment; and all are told within half of the time that there is."""
    monkeypatch.setattr("schema.asgi.LEAVING_SECONDS", 3600.0)
    async with toy.serve(Settings(drain_seconds=1800.0)) as served, contextlib.AsyncExitStack() as stack:
        sockets = [await stack.enter_async_context(talk(served)) for _ in range(3)]
        assert served.endpoint.drain() == 900.0
        await toy.until(lambda: served.endpoint.connections == 2)
        staying = [socket for socket in sockets if socket.socket.state is State.OPEN]
        assert len(staying) == 2
        for socket in staying:
            await socket.subscribe("1", HELLO)
            assert (await socket.hear())["payload"] == {"data": {"hello": "hello you"}}


async def test_who_answers_no_ping_is_cut_off(talk, logs):
    """Without a word that would make clients give up, and whether or not anybody reads; nothing of them stays."""
    async with toy.serve(ws=WebSocketLine, ws_ping_interval=0.1, ws_ping_timeout=0.1) as served, talk(served) as socket:
        await open_stream(socket, "1")
        socket.socket.transport.pause_reading()
        await toy.until(lambda: served.toy.streams == served.endpoint.connections == 0)
        socket.socket.transport.resume_reading()
        assert (await socket.closed())[0] == 1006


BUSY = ["subscription { forever }", "subscription { again: forever }", "{ never }"]


async def test_nothing_remains_of_connections_that_break(served, talk):
    """Hundreds of sockets cut off in the middle of everything leave no task, no source and no line in the log."""
    tasks = len(asyncio.all_tasks())
    opened = []
    for number in range(300):
        socket = await connect(served.ws_url, subprotocols=["graphql-transport-ws"])
        opened.append(socket)
        if number % 4:
            await socket.send(frame(type="connection_init", payload={"token": toy.TOKEN}))
            for id_, query in enumerate(BUSY[: number % 4]):
                await socket.send(frame(type="subscribe", id=str(id_), payload={"query": query}))
    await toy.until(lambda: served.toy.streams == 225 + 150 and served.endpoint.connections == 300)
    for socket in opened:
        socket.transport.abort()
    await toy.until(lambda: served.toy.streams == served.endpoint.connections == 0)
    await asyncio.gather(*(socket.wait_closed() for socket in opened))
    await toy.until(lambda: len(asyncio.all_tasks()) <= tasks)


async def test_a_peer_that_does_not_read_stops_its_source(served, caplog):
    """The source is asked for the next event when the last one was taken: memory does not grow with a slow reader."""
    host, port = served.url.split("/")[2].split(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
    writer.write(
        b"GET /graphql HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Protocol: graphql-transport-ws\r\n\r\n"
    )
    await reader.readuntil(b"\r\n\r\n")
    reader._transport.pause_reading()
    writer.write(_masked(frame(type="connection_init", payload={"token": toy.TOKEN})))
    writer.write(_masked(frame(type="subscribe", id="1", payload={"query": "subscription { flood }"})))
    await toy.until(lambda: served.toy.flooded > 0)
    before = -1
    while before != served.toy.flooded:
        before = served.toy.flooded
        for _ in range(200):
            await asyncio.sleep(0)
    assert served.toy.flooded < 5_000
    writer.transport.abort()
    await toy.until(lambda: served.toy.streams == 0)
    gc.collect()
    assert caplog.records == []  # asyncio complains there about tasks that failed unseen


async def test_a_send_that_fails_is_a_peer_that_left(caplog):
    """A server may say so by an exception, in whichever operation speaks first; no task fails unseen."""
    one = toy.Toy()
    heard = asyncio.Queue()

    async def send(message):
        if '"next"' in message.get("text", ""):
            raise OSError

    init = frame(type="connection_init", payload={"token": toy.TOKEN})
    for text in ("connect", init, frame(type="subscribe", id="1", payload=HELLO)):
        heard.put_nowait({"type": "websocket.receive", "text": text})
    scope = {"type": "websocket", "headers": [], "subprotocols": ["graphql-transport-ws"]}
    running = asyncio.create_task(toy.endpoint(one)(scope, heard.get, send))
    await toy.until(lambda: one.observed)
    heard.put_nowait({"type": "websocket.disconnect"})
    await running
    gc.collect()
    assert caplog.records == []


def _masked(text):
    """A client's frame, whose mask of zeros changes nothing."""
    return b"\x81\xfe" + len(text).to_bytes(2) + b"\0\0\0\0" + text.encode()


NOISE = [None, True, 0, -1, 1e300, "", "1", "\u0000", "{ hello }", "subscription { forever }", [], [[]], {}, {"a": {}}]
KEYS = ["type", "id", "payload", "query", "variables", "operationName", "extensions", "documentId", "token"]
KINDS = ["connection_init", "subscribe", "complete", "ping", "pong", "next", "error"]


def noise(chance, depth=0):
    if depth > 3 or chance.random() < 0.4:
        return chance.choice(NOISE)
    if chance.random() < 0.2:
        return [noise(chance, depth + 1) for _ in range(chance.randrange(4))]
    return {chance.choice(KEYS): noise(chance, depth + 1) for _ in range(chance.randrange(5))}


def message(chance):
    if chance.random() < 0.1:
        return chance.choice(["", "{", "[", "\x00", '{"type":', b"\x00\xff", b"{}"])
    made = {"type": chance.choice(KINDS), "id": chance.choice(["1", "2", "3"]), "payload": noise(chance)}
    if chance.random() < 0.6:
        made["payload"] = {
            "query": chance.choice(NOISE[7:]),
            **(made["payload"] if isinstance(made["payload"], dict) else {}),
        }
    for key in list(made):
        if chance.random() < 0.05:
            made[key] = noise(chance)
    return json.dumps(made)


@pytest.mark.parametrize("seed", range(20))
async def test_noise_ends_in_a_close_code(served, talk, logs, seed):
    """Random messages are answered or end the socket with a code of the protocol; nothing breaks."""
    chance = random.Random(seed)
    for _ in range(10):
        async with talk(served) as socket:
            for _ in range(chance.randrange(1, 12)):
                await socket.say(message(chance))
            await socket.say("the end")
            assert (await socket.closed())[0] in {4400, 4409, 4429}
    await toy.until(lambda: served.toy.streams == served.endpoint.connections == 0)
    assert logs == []


async def test_half_a_surrogate_pair_is_an_id_like_any_other(served, talk):
    """What the client calls its operation comes back as it was sent, and the id is free afterwards."""
    async with talk(served) as socket:
        for _ in range(2):
            await socket.say('{"type":"subscribe","id":"\\ud800","payload":{"query":"{ hello }"}}')
            heard = [await socket.hear() for _ in range(2)]
            assert [(message["type"], message["id"]) for message in heard] == [
                ("next", "\ud800"),
                ("complete", "\ud800"),
            ]


async def test_a_server_that_cannot_tell_who_asks_is_no_refusal(served, talk):
    """While the database is away a socket closes with 1013, which clients come back from; 4403 would be for good."""
    async with talk(served, init=False) as socket:
        await socket.say({"type": "connection_init", "payload": {"token": "away"}})
        assert (await socket.closed())[0] == 1013


@pytest.mark.parametrize("setting", ["connections", "account_connections"])
async def test_connections_at_once_are_bounded(talk, setting):
    """One more than there may be closes with 1013; when one has left there is room again."""
    async with toy.serve(toy.Settings(**{setting: 2})) as served, talk(served) as one, talk(served):
        async with talk(served, init=False) as third:
            with contextlib.suppress(ConnectionClosed):  # it may be closed already
                await third.say({"type": "connection_init", "payload": {"token": toy.TOKEN}})
            assert (await third.closed())[0] == 1013
        await one.socket.close()
        await toy.until(lambda: served.endpoint.connections == 1)
        async with talk(served) as fourth:
            await fourth.subscribe("1", HELLO)
            assert (await fourth.hear())["type"] == "next"


@pytest.mark.parametrize(("field", "why"), [("late", "Away for a moment."), ("slow", "longer than 0.2 seconds")])
async def test_an_event_waits_for_its_objects(talk, monkeypatch, field, why):
    """It is sent when they are back; when they stay away the stream ends before it, where the client's cursor is."""
    monkeypatch.setattr("schema.execution.RETRY_SECONDS", (0.0, 0.0))
    async with toy.serve(toy.Settings(query_seconds=0.2)) as served, talk(served) as socket:
        await socket.subscribe("1", {"query": f"subscription {{ fading {{ number told: {field} }} }}"})
        for number in range(2):
            heard = await socket.hear()
            assert heard["payload"] == {"data": {"fading": {"number": number, "told": number}}}
        ended = await socket.hear()
        [error] = ended["payload"]
        assert (ended["type"], error["extensions"]["code"]) == ("error", "INTERNAL")
        assert why in error["message"]
