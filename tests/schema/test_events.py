"""What happened in a sandbox, through the front door: pages, places, turns, changes, and all of it live."""

import asyncio

import pytest

from app import ids, streams
from app.enums import SandboxEventType
from tests import world as w
from tests.schema import boxes

EVENTS = """query($id: ID!, $first: Int, $after: String, $last: Int, $before: String, $types: [SandboxEventType!],
  $sources: [EventSource!]) { sandbox(id: $id) { events(first: $first, after: $after, last: $last, before: $before,
  types: $types, sources: $sources) { totalCount nodes { seq cursor type } pageInfo { hasNextPage hasPreviousPage
  startCursor endCursor } } } }"""
AROUND = (
    "query($id: ID!, $seq: Int!, $count: Int) { sandbox(id: $id) { eventsAround(seq: $seq, count: $count) { seq } } }"
)
ONE = """query($id: ID!, $seq: Int!) { sandbox(id: $id) { event(seq: $seq) { __typename id seq cursor type source turn
  occurredAt recordedAt payload ... on SandboxStatusEvent { status message } ... on MessageEvent { said: text }
  ... on ToolUseEvent { toolUseId tool input } ... on ToolCompletedEvent { toolUseId tool isError output truncated
  durationMs } ... on FileEditedEvent { change { path previousPath kind additions deletions diff sizeBytes binary } }
  ... on CheckEvent { check { command passed output durationMs } } ... on GenericEvent { text }
  ... on CompletedEvent { success summary usage { inputTokens sandboxSeconds } } } } }"""
TURNS = """query($id: ID!, $first: Int, $after: String) { sandbox(id: $id) { trajectory(first: $first, after: $after) {
  totalCount nodes { number startedAt finishedAt text events { seq type } } pageInfo { endCursor hasNextPage } } } }"""
CHANGES = """query($id: ID!, $at: Int) { sandbox(id: $id) { changes(at: $at) {
  path previousPath kind additions deletions diff sizeBytes binary } } }"""
FOLLOW = """subscription($id: ID!, $after: String, $types: [SandboxEventType!]) {
  sandboxEvents(sandboxId: $id, after: $after, types: $types) {
    events { seq cursor type } cursor caughtUp reset { reason firstAvailableSeq } } }"""
DIFFS = """subscription($id: ID!, $after: String) { sandboxDiffs(sandboxId: $id, after: $after) {
  changes { path diff } seqs cursor caughtUp reset { reason } } }"""


@pytest.fixture
async def box(ada, apollo):
    """Its stream begins with two events of the server's own: PROVISIONING and RUNNING."""
    return await boxes.running(ada, apollo)


async def asked(account, document, box, field, **variables):
    answer = await account(document, id=box.id, **variables)
    assert answer.errors == []
    return answer.data["sandbox"][field]


async def logs(box, count):
    """So many remarks of the worker at once."""
    payload = await box.report(*(box.event("LOG", {"text": str(number)}) for number in range(count)))
    assert payload["acceptedThrough"] == box.reported


def seqs(found):
    return [event["seq"] for event in found]


async def test_pages_go_through_all_events_both_ways(ada, box):
    """From the oldest forwards and from the newest backwards, each once."""
    await logs(box, 8)
    forwards, backwards, after, before = [], [], None, None
    for _ in range(3):
        page = await asked(ada, EVENTS, box, "events", first=4, after=after)
        forwards, after = forwards + seqs(page["nodes"]), page["pageInfo"]["endCursor"]
        page = await asked(ada, EVENTS, box, "events", last=4, before=before)
        backwards, before = seqs(page["nodes"]) + backwards, page["pageInfo"]["startCursor"]

    assert forwards == backwards == list(range(1, 11))
    assert page["totalCount"] == 10


async def test_pages_are_narrowed_by_type_and_source(ada, box):
    """The count too; a cursor of one filter goes on under another."""
    for _ in range(3):
        await box.did("MESSAGE", {"text": "x"}, turn=1)
        await box.did("LOG", {"text": "x"}, source="WORKER")

    said = await asked(ada, EVENTS, box, "events", types=["MESSAGE", "THINKING"])
    workers = await asked(ada, EVENTS, box, "events", sources=["WORKER"], after=said["nodes"][0]["cursor"])
    both = await asked(ada, EVENTS, box, "events", types=["MESSAGE"], sources=["WORKER"])

    assert (said["totalCount"], seqs(said["nodes"])) == (3, [3, 5, 7])
    assert (workers["totalCount"], seqs(workers["nodes"])) == (3, [4, 6, 8])
    assert (both["totalCount"], both["nodes"]) == (0, [])
    assert (await asked(ada, EVENTS, box, "events", types=[]))["nodes"] == []


async def test_an_event_is_found_by_its_seq(ada, box):
    """Null where there is none."""
    found = await asked(ada, ONE, box, "event", seq=2)
    assert (found["__typename"], found["status"]) == ("SandboxStatusEvent", "RUNNING")
    for seq in (0, -1, 3, 2_147_483_647):
        assert await asked(ada, ONE, box, "event", seq=seq) is None


@pytest.mark.parametrize(
    ("seq", "count", "found"),
    [
        (6, 5, [4, 5, 6, 7, 8]),
        (6, 4, [4, 5, 6, 7]),
        (1, 4, [1, 2, 3, 4]),
        (12, 4, [9, 10, 11, 12]),
        (99, 3, [10, 11, 12]),
        (-9, 3, [1, 2, 3]),
        (6, 100, list(range(1, 13))),
        (6, 1, [6]),
    ],
)
async def test_a_page_around_an_event_has_it_in_its_middle(seq, count, found, ada, box):
    """At an end of the stream it holds the events next to it."""
    await logs(box, 10)
    assert seqs(await asked(ada, AROUND, box, "eventsAround", seq=seq, count=count)) == found


async def test_a_page_around_an_event_has_its_limit(ada, box):
    for count in (0, -1, 101):
        assert (await ada(AROUND, id=box.id, seq=1, count=count)).codes == ["BAD_USER_INPUT"]


TOOL = {"toolUseId": "t1", "tool": "Bash"}
SHAPES = {
    "MESSAGE": ({"text": "Hello"}, "MessageEvent", {"said": "Hello"}),
    "THINKING": ({"text": "Hm"}, "MessageEvent", {"said": "Hm"}),
    "TOOL_USE": ({**TOOL, "input": {"command": "ls"}}, "ToolUseEvent", {**TOOL, "input": {"command": "ls"}}),
    "TOOL_COMPLETED": (
        {**TOOL, "isError": True, "output": "no", "truncated": False, "durationMs": 7},
        "ToolCompletedEvent",
        {**TOOL, "isError": True, "output": "no", "truncated": False, "durationMs": 7},
    ),
    "FILE_EDITED": (
        boxes.edited("b.txt", "RENAMED", previousPath="a.txt"),
        "FileEditedEvent",
        {"change": {**boxes.edited("b.txt", "RENAMED"), "previousPath": "a.txt"}},
    ),
    "CHECK_STARTED": ({"command": "pytest", "round": 1}, "CheckEvent", {"check": None}),
    "CHECK_COMPLETED": (
        {"command": "pytest", "round": 1, "passed": True, "output": "1 passed", "durationMs": 9},
        "CheckEvent",
        {"check": {"command": "pytest", "passed": True, "output": "1 passed", "durationMs": 9}},
    ),
    "LOG": ({"text": "note", "level": "info"}, "GenericEvent", {"text": "note"}),
    "STARTED": ({"model": "m"}, "GenericEvent", {"text": None}),
    "COMMITTED": ({"commit": "abc", "message": "Build", "files": 1}, "GenericEvent", {"text": "Build"}),
}


@pytest.mark.parametrize("type_", SHAPES)
async def test_each_type_has_its_shape(type_, ada, box):
    """Beside what all events have, and the whole payload as it was reported."""
    payload, kind, told = SHAPES[type_]
    await box.did(type_, payload, turn=4)

    found = await asked(ada, ONE, box, "event", seq=3)

    assert (found["__typename"], found["type"], found["turn"], found["payload"]) == (kind, type_, 4, payload)
    assert (found["source"], found["seq"], found["occurredAt"]) == ("AGENT", 3, "2026-01-31T12:00:01.000000Z")
    assert found["id"].startswith("event_")
    assert {name: found[name] for name in told} == told


@pytest.mark.parametrize("payload", [{}, {"text": 7, "path": [], "kind": "ODD", "additions": "many"}, 7, "text", []])
async def test_a_payload_of_any_shape_can_be_read(payload, ada, box):
    """A worker may say what it will: what is not what it should be is told as empty, and spoils nothing."""
    types = [one.name for one in SandboxEventType if one.name in SHAPES]
    events = [box.event(type_, payload, turn=1) for type_ in types]
    assert (await box.report(*events))["errors"] == []

    for seq in range(3, 3 + len(types)):
        assert (await asked(ada, ONE, box, "event", seq=seq))["seq"] == seq
    assert isinstance(await asked(ada, CHANGES, box, "changes"), list)
    assert len((await asked(ada, TURNS, box, "trajectory"))["nodes"]) == 1


async def test_an_end_is_told_with_its_usage(ada, box):
    await box.finish(summary="It flies.")
    found = await asked(ada, ONE, box, "event", seq=4)
    assert (found["__typename"], found["success"], found["summary"]) == ("CompletedEvent", True, "It flies.")
    assert (found["usage"]["inputTokens"], found["usage"]["sandboxSeconds"] >= 0) == (0, True)


async def test_an_output_is_cut_only_where_it_is_asked_for(ada, box):
    """`truncated` tells about this very answer, wherever it stands in the document."""
    await box.did("TOOL_COMPLETED", {**TOOL, "output": "ünïcödé", "truncated": False})
    document = "query($id: ID!) { sandbox(id: $id) { event(seq: 3) { ... on ToolCompletedEvent { %s } } } }"

    for fields, told in (
        ("truncated output(maxChars: 3)", {"truncated": True, "output": "ünï"}),
        ("output(maxChars: 7) truncated", {"output": "ünïcödé", "truncated": False}),
        ("truncated output", {"truncated": False, "output": "ünïcödé"}),
        ("truncated a: output(maxChars: 0) b: output", {"truncated": True, "a": "", "b": "ünïcödé"}),
    ):
        assert await asked(ada, document % fields, box, "event") == told
    assert (await ada(document % "output(maxChars: -1)", id=box.id)).codes == ["BAD_USER_INPUT"]


async def test_what_was_too_large_is_loaded_when_it_is_asked_for(ada, box, statements):
    """Wherever text may stand a blob may be named; the payload tells the name."""
    long = "ü" * 100_000
    blob = {"blob": await box.upload(long.encode())}
    await box.did("TOOL_COMPLETED", {**TOOL, "output": blob})
    await box.did("FILE_EDITED", boxes.edited("a.txt", diff=blob))
    await box.did("MESSAGE", {"text": blob}, turn=1)

    assert (await asked(ada, ONE, box, "event", seq=3))["output"] == long
    edited = await asked(ada, ONE, box, "event", seq=4)
    assert (edited["change"]["diff"], edited["payload"]["diff"]) == (long, blob)
    assert (await asked(ada, TURNS, box, "trajectory"))["nodes"][0]["text"] == long
    with statements() as made:
        await asked(ada, EVENTS, box, "events", first=5)
        await asked(ada, CHANGES.replace(" diff", ""), box, "changes")
    assert not [statement for statement in made if "blobs" in statement]


async def test_a_blob_that_never_came_says_so(ada, box):
    """It takes nothing else along; another sandbox's blob is none of this one's."""
    other = await boxes.running(ada, await w.project(ada))
    theirs = await other.upload(b"secret")
    for sha256 in (theirs, "ab" * 32, "garbage"):
        await box.did("TOOL_COMPLETED", {**TOOL, "output": {"blob": sha256}})

    told = [(await asked(ada, ONE, box, "event", seq=seq))["output"] for seq in (3, 4, 5)]

    assert told[0] == told[1] != ""
    assert "never uploaded" in told[0]
    assert told[2] == ""


async def test_a_trajectory_tells_turn_by_turn(ada, box):
    """What the agent said in each, its helpers left out, and all that happened in it."""
    await box.did("STARTED", {"model": "m"})
    await box.did("MESSAGE", {"text": "One"}, turn=1)
    await box.did("MESSAGE", {"text": "a helper", "parent": "t1"}, turn=1)
    await box.did("MESSAGE", {"text": "more"}, turn=1)
    await box.did("TOOL_USE", TOOL, turn=2)
    await box.did("TOOL_COMPLETED", TOOL, turn=2)

    one, two = (await asked(ada, TURNS, box, "trajectory"))["nodes"]

    assert (one["number"], one["text"], seqs(one["events"])) == (1, "One\n\nmore", [4, 5, 6])
    assert (two["number"], two["text"], [event["type"] for event in two["events"]]) == (
        2,
        "",
        ["TOOL_USE", "TOOL_COMPLETED"],
    )
    assert (one["startedAt"], one["finishedAt"]) == ("2026-01-31T12:00:02.000000Z", "2026-01-31T12:00:04.000000Z")
    assert two["finishedAt"] is None
    await box.finish()
    assert (await asked(ada, TURNS, box, "trajectory"))["nodes"][1]["finishedAt"] == "2026-01-31T12:00:06.000000Z"


async def test_a_trajectory_has_pages(ada, box):
    """Each turn once; they are counted as turns."""
    for turn in range(1, 6):
        await box.report(*(box.event("MESSAGE", {"text": str(turn)}, turn=turn) for _ in range(3)))

    first = await asked(ada, TURNS, box, "trajectory", first=3)
    rest = await asked(ada, TURNS, box, "trajectory", first=3, after=first["pageInfo"]["endCursor"])

    assert [turn["number"] for turn in first["nodes"] + rest["nodes"]] == [1, 2, 3, 4, 5]
    assert (first["totalCount"], first["pageInfo"]["hasNextPage"], rest["pageInfo"]["hasNextPage"]) == (5, True, False)
    other = await boxes.running(ada, await w.project(ada))
    answer = await ada(TURNS, id=other.id, after=first["pageInfo"]["endCursor"])
    assert answer.codes == ["BAD_USER_INPUT"]


def net(path, header="", body="@@ -1 +1,2 @@\n old\n+new\n"):
    return f"diff --git a/{path} b/{path}\n{header}--- a/{path}\n+++ b/{path}\n{body}"


async def test_changes_are_the_last_state_of_each_file(ada, box):
    """Against the base, where that is another one than the edit; what is as it was is not told."""
    edits = [
        boxes.edited("b.txt"),
        boxes.edited("a.txt", "CREATED"),
        boxes.edited("b.txt", net=net("b.txt", body="@@ -1 +1,3 @@\n-old\n+1\n+2\n+3\n")),
        boxes.edited("c.txt"),
        boxes.edited("c.txt", net=""),
    ]
    for edit in edits:
        await box.did("FILE_EDITED", edit)

    a, b = await asked(ada, CHANGES, box, "changes")

    assert {name: a[name] for name in ("path", "kind", "additions", "deletions")} == {
        "path": "a.txt",
        "kind": "CREATED",
        "additions": 1,
        "deletions": 1,
    }
    assert (b["path"], b["kind"], b["additions"], b["deletions"], b["diff"]) == (
        "b.txt",
        "MODIFIED",
        3,
        1,
        edits[2]["net"],
    )


async def test_changes_at_an_event_are_those_until_then(ada, box):
    """Every state that the files were in can be seen again."""
    for edit in (boxes.edited("a.txt", "CREATED"), boxes.edited("b.txt"), boxes.edited("a.txt", "DELETED", net="")):
        await box.did("FILE_EDITED", edit)

    told = [[one["path"] for one in await asked(ada, CHANGES, box, "changes", at=at)] for at in (0, 2, 3, 4, 5, 99)]

    assert told == [[], [], ["a.txt"], ["a.txt", "b.txt"], ["b.txt"], ["b.txt"]]


async def test_a_renamed_file_is_one_change(ada, box):
    """However often it was renamed: it goes by its last path, from the one at the base; the old path may come again."""
    first = "similarity index 90%\nrename from a.txt\nrename to c.txt\n"
    for edit in (
        boxes.edited("a.txt"),
        boxes.edited("b.txt", "RENAMED", previousPath="a.txt"),
        boxes.edited("c.txt", "RENAMED", previousPath="b.txt", net=net("c.txt", header=first)),
    ):
        await box.did("FILE_EDITED", edit)
    [renamed] = await asked(ada, CHANGES, box, "changes")
    await box.did("FILE_EDITED", boxes.edited("a.txt", "CREATED"))

    assert (renamed["path"], renamed["previousPath"], renamed["kind"]) == ("c.txt", "a.txt", "RENAMED")
    assert (renamed["additions"], renamed["deletions"]) == (1, 0)
    assert [one["path"] for one in await asked(ada, CHANGES, box, "changes")] == ["a.txt", "c.txt"]
    [before] = await asked(ada, CHANGES, box, "changes", at=4)
    assert (before["path"], before["previousPath"], before["kind"]) == ("b.txt", "a.txt", "RENAMED")


async def test_the_stream_begins_at_its_beginning_and_goes_on_live(ada, box):
    """First what is stored, then each event as it is reported."""
    async with ada.following(FOLLOW, id=box.id) as events:
        first = await events.next()
        await box.did("MESSAGE", {"text": "Hello"}, turn=1)
        second = await events.next()

    assert ([(e["seq"], e["type"]) for e in first["events"]], first["caughtUp"], first["reset"]) == (
        [(1, "SANDBOX_STATUS"), (2, "SANDBOX_STATUS")],
        True,
        None,
    )
    assert [(e["seq"], e["type"]) for e in second["events"]] == [(3, "MESSAGE")]


async def test_a_cursor_goes_on_exactly_behind_it(ada, box):
    """That of each event, of each page, and of each payload."""
    await logs(box, 5)
    nodes = (await asked(ada, EVENTS, box, "events"))["nodes"]
    for event in nodes:
        async with ada.following(FOLLOW, id=box.id, after=event["cursor"]) as events:
            payload = await events.next()
            assert seqs(payload["events"]) == list(range(event["seq"] + 1, 8))
            assert payload["cursor"] == nodes[-1]["cursor"]


async def test_what_is_not_wanted_is_passed_over_with_the_cursor(ada, box):
    """Nothing is sent for it; the next payload's cursor lies behind it, and resumes there."""
    async with ada.following(FOLLOW, id=box.id, types=["MESSAGE"]) as events:
        first = await events.next()
        await logs(box, 250)
        await box.did("MESSAGE", {"text": "Hello"}, turn=1)
        second = await events.next()

    assert (first["events"], first["caughtUp"], second["caughtUp"]) == ([], True, True)
    assert (seqs(second["events"]), streams.parse(first["cursor"]).seq, streams.parse(second["cursor"]).seq) == (
        [253],
        2,
        253,
    )
    async with ada.following(FOLLOW, id=box.id, types=["MESSAGE"], after=second["cursor"]) as events:
        assert (await events.next())["events"] == []


async def test_a_long_history_comes_whole_whatever_is_wanted_of_it(ada, box):
    """In pieces of a hundred that match; only the last one says that it is."""
    for _ in range(2):
        await box.report(*(box.event(type_, {"text": "x"}) for type_ in ("LOG", "ERROR") * 120))
    async with ada.following(FOLLOW, id=box.id, types=["ERROR"]) as events:
        payloads = [await events.next() for _ in range(3)]

    assert [(len(payload["events"]), payload["caughtUp"]) for payload in payloads] == [
        (100, False),
        (100, False),
        (40, True),
    ]
    assert [seq for payload in payloads for seq in seqs(payload["events"])] == list(range(4, 483, 2))


async def test_edits_come_live_as_diffs(ada, box):
    """Each with the seq of its event; nothing else comes."""
    async with ada.following(DIFFS, id=box.id) as events:
        first = await events.next()
        await logs(box, 3)
        await box.did("FILE_EDITED", boxes.edited("a.txt"))
        second = await events.next()

    assert (first["changes"], first["seqs"], first["caughtUp"]) == ([], [], True)
    assert (second["changes"], second["seqs"]) == ([{"path": "a.txt", "diff": boxes.edited("a.txt")["diff"]}], [6])


async def test_a_removed_members_streams_end(ada, bob, apollo, box):
    """At the next event, with an error and without the event."""
    await w.share(ada, apollo, bob)
    for document in (FOLLOW, DIFFS):
        await w.share(ada, apollo, bob)
        async with bob.following(document, id=box.id) as events:
            await events.next()
            await ada.do("removeMember", "project { id }", projectId=apollo, userId=bob.id)
            await box.did("FILE_EDITED", boxes.edited("a.txt"))
            message = await events.message()
        assert (message["type"], message["payload"][0]["extensions"]["code"]) == ("error", "FORBIDDEN")


async def test_the_cursor_of_another_sandbox_starts_again(ada, apollo, box):
    """It is told why."""
    other = await boxes.running(ada, apollo)
    cursor = (await asked(ada, EVENTS, other, "events"))["nodes"][0]["cursor"]
    async with ada.following(FOLLOW, id=box.id, after=cursor) as events:
        payload = await events.next()

    assert (payload["reset"]["firstAvailableSeq"], seqs(payload["events"])) == (1, [1, 2])
    assert (await ada(EVENTS, id=box.id, after=cursor)).codes == ["BAD_USER_INPUT"]


async def test_a_reader_who_comes_and_goes_misses_nothing(ada, box):
    """While a worker reports: every event once, in order."""
    seen, cursor = [], None
    writing = asyncio.gather(logs(box, 20))
    while len(seen) < 22:
        async with ada.following(FOLLOW, id=box.id, after=cursor) as events:
            payload = await events.next()
            seen, cursor = seen + seqs(payload["events"]), payload["cursor"]
    await writing

    assert seen == list(range(1, 23))


async def test_the_id_of_an_event_is_no_node(ada, box):
    """It names the event; what can be fetched by an id are objects that change."""
    found = await asked(ada, ONE, box, "event", seq=1)
    assert ids.decode(found["id"])[0] == "event"
    assert (await ada("query($id: ID!) { node(id: $id) { id } }", id=found["id"])).codes == ["NOT_FOUND"]
