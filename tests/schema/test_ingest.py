"""What is large in a report, or too much of it: moved, refused or put off, and never lost without a word."""

import hashlib
import json

import pytest

from app import blobs
from tests import world as w
from tests.schema import boxes

READ = """query($id: ID!) { sandbox(id: $id) { changes { diff } events(last: 100) { nodes { seq type source payload
  ... on MessageEvent { text } ... on ToolCompletedEvent { output } ... on CheckEvent { check { output } }
  ... on FileEditedEvent { change { diff } } ... on GenericEvent { words: text } } } } }"""
END = """subscription($id: ID!) { sandboxEvents(sandboxId: $id, types: [COMPLETED]) { events { payload
  ... on CompletedEvent { summary } } } }"""
ENDED = """query($id: ID!) { sandbox(id: $id) { failure { message } task { result { summary branch commit } }
  events(last: 2) { nodes { payload ... on SandboxStatusEvent { message } ... on CompletedEvent { summary } } } } }"""
OUTPUTS = """subscription($id: ID!) { sandboxEvents(sandboxId: $id) { events {
  ... on ToolCompletedEvent { output } } } }"""
PAYLOADS = "subscription($id: ID!) { sandboxEvents(sandboxId: $id, types: [LOG]) { events { payload } } }"
LONG = 64 << 10


@pytest.fixture
async def box(ada, apollo):
    return await boxes.running(ada, apollo)


async def read(account, box):
    answer = await account(READ, id=box.id)
    assert answer.errors == []
    return answer.data["sandbox"]


async def told(account, box):
    """What of its history came from the worker, or in its place."""
    return [node for node in (await read(account, box))["events"]["nodes"] if node["type"] != "SANDBOX_STATUS"]


def text(letter, size=LONG + 1):
    return (letter * 99 + "\n") * (size // 100) + letter * (size % 100)


def name(value):
    return {"blob": hashlib.sha256(value.encode()).hexdigest()}


@pytest.mark.parametrize(
    ("kind", "place", "given", "shown"),
    [
        ("MESSAGE", "text", {}, lambda node: node["text"]),
        ("TOOL_COMPLETED", "output", {"tool": "Bash"}, lambda node: node["output"]),
        ("CHECK_COMPLETED", "output", {"command": "make"}, lambda node: node["check"]["output"]),
        ("FILE_EDITED", "diff", {"path": "a"}, lambda node: node["change"]["diff"]),
        ("LOG", "message", {}, lambda node: node["words"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_long_text_lies_beside_its_event(ada, box, kind, place, given, shown):
    """By its hash, and it is loaded where its field is asked for; one of 64 KiB stays. Sent again it is the same."""
    short = box.event(kind, {**given, place: text("s", LONG - 200)})
    long = box.event(kind, {**given, place: text("l")})
    for _ in range(2):
        assert (await box.report(short, long))["errors"] == []

    stays, moved = await told(ada, box)
    assert stays["payload"] == short["payload"]
    assert moved["payload"] == {**given, place: name(text("l"))}
    assert (shown(stays), shown(moved)) == (text("s", LONG - 200), text("l"))


@pytest.mark.parametrize("number", ["1e22", "18446744073709551616", "-1e300", "1e-7"])
async def test_any_number_that_was_taken_is_told(ada, box, number):
    """Also one that fits in no 64 bits: whoever follows the sandbox hears it, and all that comes after it."""
    value = float(number)
    await box.report(box.event("LOG", {"x": json.loads(number), "deep": [{"y": value}]}), box.event("LOG"))
    heard = []
    async with ada.following(PAYLOADS, id=box.id) as followed:
        while len(heard) < 2:
            heard += [event["payload"] for event in (await followed.next())["events"]]
    assert ([float(heard[0]["x"]), float(heard[0]["deep"][0]["y"])], heard[1]) == ([value] * 2, {})


async def test_few_long_texts_come_in_one_payload(ada, box):
    """However little is left of them in their events, so that no answer grows without bound."""
    outputs = [text(letter) for letter in "abcdefghij"]
    await box.report(*(box.event("TOOL_COMPLETED", {"tool": "Bash", "output": output}) for output in outputs))
    heard, most = [], 0
    async with ada.following(OUTPUTS, id=box.id) as followed:
        while len(heard) < len(outputs):
            told = [event["output"] for event in (await followed.next())["events"] if event]
            heard += told
            most = max(most, len(told))
    assert (heard, most <= 4) == (outputs, True)


async def test_a_long_net_diff_is_read_as_a_change(ada, box):
    """It lies beside the event like the diff of the edit itself."""
    net = boxes.edited("a")["diff"] + "".join(f"+{n}\n" for n in range(20_000))
    await box.did("FILE_EDITED", boxes.edited("a", net=net))
    assert (await read(ada, box))["changes"] == [{"diff": net}]
    assert (await told(ada, box))[0]["payload"]["net"] == name(net)


async def test_what_is_moved_is_masked(ada, box):
    """In the text, and so in its name, which would tell else that the text has the secret."""
    secret = f"It is {box.token}. " + text("x")
    await box.did("MESSAGE", {"text": secret})
    [event] = await told(ada, box)
    masked = secret.replace(box.token, "•••")
    assert (event["text"], event["payload"]) == (masked, {"text": name(masked)})


async def test_an_event_has_its_size(ada, box):
    """Texts that readers follow move until it fits; what is too large without them is refused alone."""
    others = {name: text(name, 60 << 10) for name in "abc"}
    await box.did("FILE_EDITED", {"path": "a", "diff": text("d", 60 << 10), "net": text("n", 62 << 10), **others})
    taken, refused = box.event("LOG"), box.event("TOOL_USE", {"input": {"content": text("i", 256 << 10)}})
    payload = await box.report(taken, refused, box.event("LOG"))

    assert w.refusals(payload) == [("INVALID_INPUT", ["events", "1", "payload"])]
    assert (payload["acceptedThrough"], "256 KiB" in payload["errors"][0]["message"]) == (2, True)
    moved = (await told(ada, box))[0]["payload"]
    assert [place for place, value in moved.items() if isinstance(value, dict)] == ["net"]


async def test_what_nobody_could_follow_stays(ada, box):
    """A text that no field of its event's type reads is kept in the event."""
    given = {"text": "short", "message": text("m"), "output": text("o")}
    await box.did("LOG", given)
    await box.did("TOOL_USE", given)
    assert [event["payload"] for event in await told(ada, box)] == [given, given]


async def test_what_has_no_room_keeps_its_beginning(ada, box, monkeypatch):
    """As when a worker is told so: it says how large it was, and why the rest is missing."""
    monkeypatch.setattr(blobs, "QUOTA_BYTES", 100)
    await box.did("TOOL_COMPLETED", {"output": text("o"), "isError": False})
    [event] = await told(ada, box)
    assert event["output"] == text("o")[: 4 << 10]
    assert event["payload"] == {
        "output": event["output"],
        "isError": False,
        "truncated": True,
        "sizeBytes": LONG + 1,
        "reason": "A sandbox keeps 0 GiB of blobs at most.",
    }


async def test_a_long_last_word_lies_beside_its_event(ada, box):
    """Of almost the size that a request may have: who follows gets it whole, and so does who reads the result."""
    summary = text("s", 900 << 10)
    async with ada.following(END, id=box.id) as followed:
        assert (await followed.next())["events"] == []
        assert (await box.finish(summary=summary))["errors"] == []
        [event] = (await followed.next())["events"]

    result = (await ada(ENDED, id=box.id)).data["sandbox"]["task"]["result"]
    assert (event["payload"]["summary"], event["summary"], result["summary"]) == (name(summary), summary, summary)


async def test_a_failure_is_said_in_few_words(ada, box):
    """Its message, and that of the status, are the beginning of what the worker said; its last event has all of it."""
    said = text("f", 900 << 10)
    await box.finish(success=False, summary=said)
    sandbox = (await ada(ENDED, id=box.id)).data["sandbox"]
    status, end = sandbox["events"]["nodes"]
    beginning = said[:3_999] + "…"
    assert (sandbox["failure"]["message"], status["message"], end["summary"]) == (beginning, beginning, said)


async def test_what_is_no_name_is_not_told_as_one(ada, box):
    """A commit of a megabyte would be in the event of the end, and in the result."""
    await box.finish(commit="c" * (900 << 10))
    sandbox = (await ada(ENDED, id=box.id)).data["sandbox"]
    assert (sandbox["events"]["nodes"][1]["payload"]["commit"], sandbox["task"]["result"]["commit"]) == (None, None)


@pytest.fixture
def settings(request, settings):
    """With quotas that a test can reach, where it says which."""
    for knob, value in getattr(request, "param", {}).items():
        object.__setattr__(settings, knob, value)
    return settings


FEW = {"sandbox_events_per_second": 10, "sandbox_events_burst": 20}
REPORT = "mutation($input: ReportEventsInput!) { reportEvents(input: $input) { acceptedThrough } }"


@pytest.mark.parametrize("settings", [FEW], indirect=True)
async def test_too_many_events_are_put_off(ada, apollo):
    """The whole batch, before anything is done for it, with the time to wait; another sandbox goes on."""
    box, other = await boxes.running(ada, apollo), await boxes.running(ada, apollo)
    many = [box.event("LOG") for _ in range(40)]
    assert (await box.report(*many[:15]))["acceptedThrough"] == 15

    refused = await box(REPORT, input={"events": many[15:]})

    [error] = refused.errors
    assert (error["extensions"]["code"], refused.data) == ("RATE_LIMITED", None)
    assert 0 < error["extensions"]["retryAfter"] <= 1.6
    assert len(await told(ada, box)) == 15
    assert (await other.report(*(other.event("LOG") for _ in range(15))))["acceptedThrough"] == 15


@pytest.mark.parametrize("settings", [{"sandbox_stream_bytes": 10_000}], indirect=True)
async def test_a_full_stream_takes_no_more(ada, apollo):
    """What comes is left out and acknowledged, so that its worker goes on; one line says so, and the end is told."""
    box = await boxes.running(ada, apollo)
    await box.did("MESSAGE", {"text": text("m", 9_000)})
    assert (await box.report(box.event("MESSAGE", {"text": text("n", 9_000)})))["errors"] == []
    for number in (3, 4):
        payload = await box.report(box.event("MESSAGE", {"text": "left out"}))
        assert (w.refusals(payload), payload["acceptedThrough"]) == ([("LIMIT_REACHED", ["events"])], number)
    await box.report(box.event("WAITING"))
    await box.finish()

    events = (await read(ada, box))["events"]["nodes"]
    kinds = [node["type"] for node in events if node["type"] != "SANDBOX_STATUS"]
    [line] = [node for node in events if node["type"] == "LOG"]
    assert kinds == ["MESSAGE", "MESSAGE", "LOG", "COMPLETED"]
    assert (line["source"], "is left out" in line["payload"]["text"]) == ("SYSTEM", True)
    assert [node["payload"]["status"] for node in events if node["type"] == "SANDBOX_STATUS"][-2:] == [
        "WAITING",
        "COMPLETED",
    ]
