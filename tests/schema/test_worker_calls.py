"""What a worker asks of the server: it reports, hears, and ends, with its sandbox's token and about that alone."""

import asyncio

import pytest

from app import auth
from tests import world as w
from tests.schema import boxes, built, scene

READ = """query($id: ID!) { sandbox(id: $id) { status lastSeq startedAt failure { code message retryable }
  heartbeats { count firstAt lastAt longestGapMs } task { status result { summary output branch commit
  checks { command passed output durationMs } } } events(last: 100) { nodes { seq type source turn payload } } } }"""
INBOX = "subscription { workerInbox { messages { body kind } desiredState } }"
SAY = "message { id status }"


@pytest.fixture
async def box(ada, apollo):
    return await boxes.running(ada, apollo)


async def read(account, box):
    answer = await account(READ, id=box.id)
    assert answer.errors == []
    return answer.data["sandbox"]


async def reported(account, box):
    """What of its history came from the worker."""
    return [node for node in (await read(account, box))["events"]["nodes"] if node["type"] != "SANDBOX_STATUS"]


async def test_what_is_reported_is_read_in_the_same_order(ada, box):
    """With its type, source, turn and data; a number that follows the last one goes on."""
    await box.did("STARTED", {"model": "scripted"}, source="WORKER")
    payload = await box.report(
        box.event("MESSAGE", {"text": "Hello"}, turn=1), box.event("THINKING", {"text": "Hm"}, turn=1)
    )

    assert (payload["acceptedThrough"], payload["desiredState"], payload["errors"]) == (3, "RUN", [])
    assert [(e["type"], e["source"], e["turn"], e["payload"]) for e in await reported(ada, box)] == [
        ("STARTED", "WORKER", None, {"model": "scripted"}),
        ("MESSAGE", "AGENT", 1, {"text": "Hello"}),
        ("THINKING", "AGENT", 1, {"text": "Hm"}),
    ]


async def test_a_report_that_comes_again_is_taken_once(ada, box):
    """Whole or in part, also by several at once; what is new in it is taken."""
    events = [box.event("LOG", {"text": str(number)}) for number in range(5)]
    await box.report(*events[:3])

    payloads = await asyncio.gather(*(box.report(*events) for _ in range(4)))

    assert [(payload["acceptedThrough"], payload["errors"]) for payload in payloads] == [(5, [])] * 4
    assert [event["payload"]["text"] for event in await reported(ada, box)] == list("01234")


async def test_a_hole_is_answered_by_what_was_taken(ada, box):
    """The worker goes on from there; nothing behind the hole is stored."""
    first, _, third = (box.event("LOG", {"text": str(number)}) for number in range(3))

    payload = await box.report(first, third)

    assert payload["acceptedThrough"] == 1
    assert w.refusals(payload) == [("INVALID_INPUT", ["events", "1", "producerSeq"])]
    assert len(await reported(ada, box)) == 1


async def test_other_content_under_a_known_number_is_refused(ada, box):
    """The first one stays, and how far it was taken is told as ever."""
    event = box.event("LOG", {"text": "one"})
    await box.report(event)

    payload = await box.report({**event, "payload": {"text": "two"}})

    assert (payload["acceptedThrough"], [code for code, _ in w.refusals(payload)]) == (1, ["INVALID_INPUT"])
    assert [event["payload"] for event in await reported(ada, box)] == [{"text": "one"}]


@pytest.mark.parametrize("odd", ["a\0b", "half \ud83d", "\udc00", "a\\u0000b"], ids=ascii)
async def test_no_text_of_an_agent_is_refused(odd, ada, box):
    """What Postgres cannot hold is told as a replacement character; an agent prints what it wants."""
    await box.did("MESSAGE", {"text": odd, odd: [odd, {"deep": odd}]}, turn=1)
    finished = await box.finish(summary=odd, output={"said": odd})

    [event, end] = await reported(ada, box)
    assert (finished["errors"], len(event["payload"]), end["type"]) == ([], 2, "COMPLETED")
    for told in (event["payload"]["text"], end["payload"]["summary"]):
        assert (len(told), told.encode().decode()) == (len(odd), told)
        assert "\0" not in told


async def test_an_empty_report_is_a_sign_of_life(ada, box):
    """It is counted apart from events; one without a heartbeat is not counted."""
    await box.report()
    await box.report(heartbeat=False)

    now = await read(ada, box)
    assert (now["heartbeats"]["count"], now["heartbeats"]["firstAt"] <= now["heartbeats"]["lastAt"]) == (2, True)
    assert await reported(ada, box) == []


async def test_the_first_sign_of_life_begins_the_attempt(ada, apollo):
    """Sandbox and task run from then on."""
    box = await boxes.spawn(ada, apollo)
    before = await read(ada, box)
    await box.report()
    after = await read(ada, box)

    assert (before["status"], before["task"]["status"], before["startedAt"]) == ("PROVISIONING", "ASSIGNED", None)
    assert (after["status"], after["task"]["status"], after["startedAt"] is None) == ("RUNNING", "RUNNING", False)


async def test_a_batch_has_its_limit(box):
    """500 are taken at once, 501 are refused, and nothing of them is stored."""
    many = [box.event("LOG", {"text": "x"}) for _ in range(501)]

    refused = await box.report(*many)
    taken = await box.report(*many[:500])

    assert (w.refusals(refused), refused["acceptedThrough"]) == ([("INVALID_INPUT", ["events"])], 0)
    assert (taken["errors"], taken["acceptedThrough"]) == ([], 500)


@pytest.mark.parametrize("type_", ["SANDBOX_STATUS", "COMPLETED", "BUDGET_WARNING", "INTERVENTION"])
async def test_a_worker_does_not_speak_for_the_server(type_, ada, box):
    """Nor for a person or the guardian."""
    as_server = await box.report(box.event(type_, {"status": "COMPLETED"}))
    box.reported = 0
    as_person = await box.report(box.event("LOG", source="USER"))

    assert [code for payload in (as_server, as_person) for code, _ in w.refusals(payload)] == ["INVALID_INPUT"] * 2
    assert await reported(ada, box) == []


async def test_a_result_is_told_once_and_for_ever(ada, box):
    """The token dies with the attempt, so the first word stays. Without a repository there is no branch to tell."""
    check = {"command": "pytest -q", "passed": True, "output": "1 passed", "durationMs": 7}
    given = {"summary": "Built.", "output": {"n": 1}, "branch": "feature/1-go", "commit": "abc", "checks": [check]}

    payload = await box.finish(**given)
    again = await asyncio.gather(*(box.world.ask("{ viewer { kind } }", token=box.token) for _ in range(3)))

    now = await read(ada, box)
    assert (payload["errors"], now["status"], now["failure"]) == ([], "COMPLETED", None)
    assert now["task"] == {"status": "COMPLETED", "result": {**given, "branch": None}}
    assert {code for answer in again for code in answer.codes} <= {"UNAUTHENTICATED"}


async def test_a_failure_is_told_with_its_code(ada, box):
    """The task waits for its next attempt, unless this was the last."""
    payload = await box.finish(success=False, summary="It broke.", failureCode="AGENT_ERROR")

    now = await read(ada, box)
    assert (payload["errors"], now["status"], now["task"]["result"]) == ([], "FAILED", None)
    assert (now["failure"]["code"], now["failure"]["message"]) == ("AGENT_ERROR", "It broke.")


async def test_a_secret_is_masked_wherever_a_worker_tells_it(ada, box):
    """In events, in the summary, in data and in the output of checks."""
    check = {"command": "env", "passed": True, "output": f"TOKEN={box.token}", "durationMs": 1}
    await box.did("MESSAGE", {"text": f"My token is {box.token}.", box.token: [box.token]})
    await box.finish(summary=f"Used {box.token}.", output={"token": box.token}, checks=[check])

    answer = await ada(READ, id=box.id)
    assert answer.errors == []
    assert box.token not in str(answer.body)
    assert "My token is •••" in str(answer.body)


async def test_messages_come_with_reports_until_they_are_acknowledged(ada, box):
    """The same ones again and again; acknowledged twice is acknowledged, in the turn that was said first."""
    said = await ada.do("injectMessage", SAY, sandboxId=box.id, body="Use the other engine")
    first, again = await box.report(), await box.report()
    for turn in (3, 4):
        await box.do("acknowledgeMessages", "desiredState", messageIds=[said["id"], "garbage"], deliveredInTurn=turn)

    one = {"id": said["id"], "kind": "USER", "body": "Use the other engine", "author": "Ada", "authorKind": "USER"}
    assert first["pendingMessages"] == again["pendingMessages"] == [one]
    assert (await box.report())["pendingMessages"] == []
    found = await ada("query($id: ID!) { node(id: $id) { ... on Message { status deliveredInTurn } } }", id=said["id"])
    assert found.data["node"] == {"status": "DELIVERED", "deliveredInTurn": 3}


async def test_nobody_acknowledges_what_was_said_to_another(ada, apollo, box):
    """It is passed over, and goes on waiting."""
    other = await boxes.running(ada, apollo)
    said = await ada.do("injectMessage", SAY, sandboxId=box.id, body="For you alone")

    await other.do("acknowledgeMessages", "desiredState", messageIds=[said["id"]])

    assert [message["id"] for message in (await box.report())["pendingMessages"]] == [said["id"]]


async def test_the_inbox_tells_what_waits_and_then_what_comes(ada, box):
    """Each message once on one subscription, again on the next one while it is not acknowledged."""
    await ada.do("injectMessage", SAY, sandboxId=box.id, body="one")
    async with box.following(INBOX) as looks:
        first = await looks.next()
        await ada.do("injectMessage", SAY, sandboxId=box.id, body="two", kind="INTERRUPT")
        second = await looks.next()
    async with box.following(INBOX) as looks:
        anew = await looks.next()

    assert (first["messages"], first["desiredState"]) == ([{"body": "one", "kind": "USER"}], "RUN")
    assert second["messages"] == [{"body": "two", "kind": "INTERRUPT"}]
    assert anew["messages"] == first["messages"] + second["messages"]


async def test_the_inbox_begins_at_once_and_tells_the_wish_to_stop(ada, box):
    """Empty when nothing waits; reports carry the wish too."""
    async with box.following(INBOX) as looks:
        assert await looks.next() == {"messages": [], "desiredState": "RUN"}
        await ada.do("stopSandbox", "sandbox { status }", sandboxId=box.id)
        assert await looks.next() == {"messages": [], "desiredState": "STOP"}

    assert (await box.report())["desiredState"] == "STOP"


async def test_the_inbox_of_an_ended_sandbox_ends(box):
    """Completed, or told that its token counts no more: either way the worker is not left waiting."""
    async with box.following(INBOX) as looks:
        await looks.next()
        await box.finish()
        while (message := await looks.message())["type"] == "next":
            pass

    assert message["type"] in ("complete", "error")


async def test_a_git_credential_is_null_where_none_is_needed(box):
    """A project without a repository asks for nothing."""
    payload = await box.change("issueGitCredential", "username password expiresAt", operation="FETCH")
    assert payload == {"username": None, "password": None, "expiresAt": None, "errors": []}


WORKERS = [field for field in built.root_fields() if field.rule == auth.WORKER]


async def test_only_a_worker_makes_a_workers_calls(ada, world):
    """Not a person, however much the project is theirs; and nobody without a token."""
    laid = await scene.lay(ada, await world.account("carol"))
    assert len(WORKERS) == 5
    for field in WORKERS:
        if field.operation == "mutation":
            given = scene.examples(laid)[field.name]
            assert (await ada(field.document(), input=given)).codes == ["FORBIDDEN"]
            assert (await world.ask(field.document(), {"input": given})).codes == ["UNAUTHENTICATED"]
    assert await refused(ada, INBOX) == ["FORBIDDEN"]


async def test_a_worker_makes_no_other_calls(ada, world):
    """Every root field but its own, and but who it is, is forbidden to it, also about its own objects."""
    laid = await scene.lay(ada, await world.account("carol"))
    others = [field for field in built.root_fields() if field.rule not in (auth.WORKER, auth.ANYBODY)]
    assert len(others) > 30
    for field in others:
        about = {"id": laid.sandbox, "ids": [laid.sandbox], field.of: laid.sandbox}
        given = {name: about[name] for name in field.definition.args if name in about}
        if field.operation == "subscription":
            codes = await refused(laid.box, field.document(), **given)
        elif field.operation == "mutation":
            codes = (await laid.box(field.document(), input=scene.examples(laid)[field.name])).codes
        else:
            codes = (await laid.box(field.document(), **given)).codes
        assert codes == ["FORBIDDEN"], field.name


async def refused(account, document, **variables):
    """The codes with which a subscription is refused."""
    async with account.following(document, **variables) as events:
        message = await events.message()
    errors = message["payload"] if message["type"] == "error" else message["payload"]["errors"]
    return [error["extensions"]["code"] for error in errors]


async def test_a_worker_reads_itself_and_nothing_that_leads_away(box):
    """Every field of its sandbox, by the schema's own list, but for the project and the task."""
    await box.did("MESSAGE", {"text": "Hello"}, turn=1)
    for name in built.object_types()["Sandbox"].fields:
        chosen = built.selection("Sandbox", only=name)
        answer = await box(f"{{ viewer {{ kind user {{ id }} sandbox {{ {chosen} }} }} }}")
        assert answer.codes == (["FORBIDDEN"] if name in ("project", "task") else []), (name, answer.body)


SPELLED_OUT = """mutation{} {{ reportEvents(input: {{events: [
  {{producerSeq: 1, type: LOG, occurredAt: "2026-01-31T12:00:00Z", payload: {}}}]}}) {{ acceptedThrough }} }}"""


@pytest.mark.parametrize(
    ("literal", "said"),
    [
        ("1e999", "1e999 is larger"),
        ("{a: [{b: -1e999}]}", "-1e999 is larger"),
        ("NaN", "JSON has no NaN"),
        ("[Infinity]", "JSON has no Infinity"),
        ("9" * 4_001, "4,000 digits"),
        ("[" * 300 + "]" * 300, "nested too deeply"),
    ],
    ids=["endless", "within", "NaN", "a name", "digits", "levels"],
)
async def test_a_literal_that_is_no_json_is_refused(ada, apollo, box, literal, said):
    """In the document itself as in variables; nothing of it is stored."""
    answer = await box(SPELLED_OUT.format("", literal))
    [error] = answer.errors
    assert error["extensions"]["code"] in {"BAD_USER_INPUT", "COST_EXCEEDED"}
    assert said in error["message"]
    assert await reported(ada, box) == []


async def test_a_literal_is_taken_as_json(ada, box):
    """Numbers of any size, lists, objects, and variables among them."""
    spelled = '{a: $a, b: [1, -2.5, 1e3, "x", true, null], c: {d: 18446744073709551615}, e: %s}'
    answer = await box(SPELLED_OUT.format("($a: JSON)", spelled % ("9" * 400)), a={"inner": [1]})
    assert (answer.errors, answer.data["reportEvents"]["acceptedThrough"]) == ([], 1)
    [event] = await reported(ada, box)
    data = {"a": {"inner": [1]}, "b": [1, -2.5, 1000, "x", True, None], "c": {"d": 2**64 - 1}, "e": "9" * 400}
    assert event["payload"] == data
