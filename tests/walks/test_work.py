"""Tickets become branches: the real agent, in real boxes, on a real repository; only the model is a script."""

import base64
import json

import pytest

from app import ids, sandboxes
from tests.databases import cloned
from tests.works import git, working


@pytest.fixture(scope="module")
async def works(postgres):
    async with cloned(postgres) as database_url, working(database_url) as running:
        yield running


@pytest.fixture
async def project(works):
    """A project without a repository."""
    return await works.project()


@pytest.fixture
async def repository(works, request):
    return works.repository(request.node.name[:60].replace("[", "-").replace("]", ""))


@pytest.fixture
async def linked(works, repository):
    """A project with a repository."""
    return await works.project(repository={"cloneUrl": str(repository)})


async def types(works, task):
    return [event["type"] for event in await works.events(task["sandboxes"]["nodes"][0]["id"])]


async def test_a_ticket_becomes_a_branch(works, linked, repository):
    """The result is what the program printed, and the branch with the work is in the repository."""
    task = await works.done(linked, "Compute C(50,25) with a program")
    assert (task["status"], task["failure"]) == ("COMPLETED", None)
    assert "126,410,606,437,752" in task["result"]["summary"]
    assert task["result"]["output"] == {"C(50,25)": 126410606437752}
    assert task["result"]["branch"] == "feature/1-compute-c-50-25-with-a-program"
    assert git(repository, "rev-parse", task["result"]["branch"]) == task["result"]["commit"]
    assert "n, k = 50, 25" in git(repository, "show", f"{task['result']['branch']}:binomial.py")
    assert task["usage"]["inputTokens"] > 0
    await works.cleared()


async def test_without_a_repository_the_result_is_kept_as_diffs(works, project):
    """The agent works in an empty one; what it made is in the sandbox's changes."""
    task = await works.done(project, "[[notes]] Write it down")
    assert (task["status"], task["result"]["branch"]) == ("COMPLETED", None)
    query = "query($id: ID!) { sandbox(id: $id) { changes { path kind additions diff } } }"
    answer = await works.account(query, id=task["sandboxes"]["nodes"][0]["id"])
    [change] = answer.data["sandbox"]["changes"]
    assert (change["path"], change["kind"]) == ("NOTES.md", "CREATED")
    assert "+# Write it down" in change["diff"]


async def test_a_failing_check_is_repaired_on_feedback(works, linked, repository):
    """The agent hears what failed, mends it, and the result says that the check passed."""
    settings = {"checks": ["python3 test_total.py"]}
    await works.account.do("updateProject", "project { id }", projectId=linked, settings=settings)
    task = await works.done(linked, "Write a total that fails its check at first")
    assert task["status"] == "COMPLETED", task["failure"]
    assert task["result"]["checks"] == [{"command": "python3 test_total.py", "passed": True}]
    assert (await types(works, task)).count("CHECK_COMPLETED") == 2


async def test_checks_that_never_pass_fail_the_task(works, linked, repository):
    """After three rounds of feedback it is CHECKS_FAILED, and the work is on the branch all the same."""
    await works.account.do("updateProject", "project { id }", projectId=linked, settings={"checks": ["false"]})
    task = await works.done(linked, "[[notes]] Write it down")
    assert (task["status"], task["failure"]["code"], task["attempt"]) == ("FAILED", "CHECKS_FAILED", 1)
    assert (await types(works, task)).count("CHECK_COMPLETED") == 4
    assert git(repository, "show", f"{task['sandboxes']['nodes'][0]['branch']}:NOTES.md")


async def test_files_that_only_the_shell_touched_are_seen(works, project):
    """Renamed, deleted and made by commands, each is told with its kind."""
    task = await works.done(project, "Please rename and delete some files")
    query = "query($id: ID!) { sandbox(id: $id) { changes { path kind } } }"
    answer = await works.account(query, id=task["sandboxes"]["nodes"][0]["id"])
    changes = {change["path"]: change["kind"] for change in answer.data["sandbox"]["changes"]}
    assert changes.keys() == {"fresh.txt", "hello.sh", "new.txt"}
    edits = [e for e in await works.events(task["sandboxes"]["nodes"][0]["id"]) if e["type"] == "FILE_EDITED"]
    assert {"DELETED", "RENAMED", "CREATED"} <= {edit["payload"]["kind"] for edit in edits}


async def test_a_subagent_is_seen(works, project):
    """With sub-agents switched on, its start, its end and its own words are events."""
    await works.account.do("updateProject", "project { id }", projectId=project, settings={"enableSubagents": True})
    task = await works.done(project, "Let a subagent review this")
    assert task["status"] == "COMPLETED"
    seen = await types(works, task)
    assert {"SUBAGENT_STARTED", "SUBAGENT_COMPLETED"} <= set(seen)


async def test_a_secret_is_masked_wherever_it_is_printed(works, project):
    """Whole, in two halves, in base64 and as in a URL: the token is in no event and in no log."""
    task = await works.done(project, "Please print your secret")
    sandbox = task["sandboxes"]["nodes"][0]
    stored = json.dumps(await works.events(sandbox["id"]), ensure_ascii=False)
    [token] = {works.world.server.keys.sandbox_token(row.id, row.attempt) for row in await rows(works, sandbox["id"])}
    for form in (token, base64.b64encode(token.encode()).decode().rstrip("=")):
        assert form not in stored.replace('", "', "")
    outputs = "".join(e["payload"].get("output", "") for e in await works.events(sandbox["id"]))
    assert token not in outputs
    assert token not in sandbox["log"]
    assert "•••" in stored


async def rows(works, sandbox_id):
    async with works.world.server.db.reading() as session:
        return await sandboxes.by_ids(session, [ids.decode(sandbox_id)[1]])


async def test_a_crash_is_told_and_tried_again(works, project):
    """The agent's program killed by -9: KILLED on the first attempt, and the second one completes."""
    task = await works.done(project, "crash once and then work")
    assert (task["status"], task["attempt"]) == ("COMPLETED", 2)
    assert [s["failure"] and s["failure"]["code"] for s in task["sandboxes"]["nodes"]] == [None, "KILLED"]


async def test_a_message_reaches_the_running_agent(works, project):
    """What a person says is shown to the agent while it works, and its receipt names the turn."""
    task_id = await works.task(project, "Work until you wait for a message")
    task = await works.reaches(task_id, "RUNNING")
    sandbox_id = task["sandboxes"]["nodes"][0]["id"]
    said = await works.account.do("injectMessage", "message { id status }", sandboxId=sandbox_id, body="Use base 7.")
    task = await works.ended(task_id)
    assert "Use base 7." in task["result"]["summary"]
    answer = await works.account(
        "query($id: ID!) { node(id: $id) { ... on Message { status deliveredInTurn deliveredAt } } }", id=said["id"]
    )
    message = answer.data["node"]
    assert message["status"] == "DELIVERED"
    assert message["deliveredInTurn"] is not None
    assert "MESSAGE_DELIVERED" in await types(works, task)


async def test_cancelling_stops_the_agent_at_once(works, project):
    """The worker hears the wish, stops its command and leaves; the box goes; a late result changes nothing."""
    task_id = await works.task(project, "Start one long command")
    await works.reaches(task_id, "RUNNING")
    cancelled = await works.account.do("cancelTask", "task { status }", taskId=task_id, reason="Not needed.")
    assert cancelled["status"] == "CANCELLED"
    await works.cleared()
    task = await works.read(task_id)
    assert (task["status"], task["sandboxes"]["nodes"][0]["status"]) == ("CANCELLED", "CANCELLED")


async def test_stopping_a_sandbox_cancels_its_task(works, project):
    """The try ends CANCELLED with its reason, and the task can be retried."""
    task_id = await works.task(project, "Start one long command")
    task = await works.reaches(task_id, "RUNNING")
    stopping = {"sandboxId": task["sandboxes"]["nodes"][0]["id"], "reason": "Wrong repository."}
    await works.account.do("stopSandbox", "sandbox { status }", **stopping)
    await works.cleared()
    task = await works.read(task_id)
    assert (task["status"], task["failure"]["retryable"]) == ("CANCELLED", True)
    assert task["sandboxes"]["nodes"][0]["failure"] == {"code": "CANCELLED", "message": "Wrong repository."}


async def test_a_budget_stops_the_agent_with_its_work_saved(works, linked):
    """At 80 % it is warned; at 100 % the model refuses, and what it did is recorded."""
    await works.account.do("updateProject", "project { id }", projectId=linked, settings={"budgetUsd": 2.0})
    task = await works.done(linked, "Please use up the budget")
    assert (task["status"], task["failure"]["code"], task["attempt"]) == ("FAILED", "BUDGET_EXHAUSTED", 1)
    assert "BUDGET_WARNING" in await types(works, task)
    waiting = await works.task(linked, "[[notes]] One more")
    assert [reason["code"] for reason in (await works.read(waiting))["waitingFor"]] == ["BUDGET"]


async def test_what_the_seeds_promise_is_in_the_environment(works, linked):
    """The worker, and with it the agent, is told who, what and where."""
    names = "USER_ID TASK_ID TICKET_ID PROJECT_ID SANDBOX_ID BRANCH_NAME BASE_BRANCH CALLBACK_URL TASK_DATA_BASE64"
    command = f"for name in {names}; do printenv $name >/dev/null && echo $name; done"
    task = await works.done(linked, "[[obedient]] Look", description=f"```\n{command}\nprintenv USER_ID\n```")
    outputs = [
        e["payload"]["output"]
        for e in await works.events(task["sandboxes"]["nodes"][0]["id"])
        if e["type"] == "TOOL_COMPLETED"
    ]
    assert outputs[0].split() == names.split()
    assert outputs[1].strip() == works.account.id


async def test_a_retry_resumes_the_session_and_the_files(works, linked, repository):
    """With `resume` the next attempt has the agent's session and every edit that was recorded."""
    task_id = await works.task(linked, "Work in slow steps")
    task = await works.reaches(task_id, "RUNNING")
    await works.happens(task["sandboxes"]["nodes"][0]["id"], "TOOL_COMPLETED")
    await works.account.do("cancelTask", "task { status }", taskId=task_id)
    await works.cleared()
    await works.account.do("retryTask", "task { status }", taskId=task_id, resume=True)
    task = await works.ended(task_id)
    assert (task["status"], task["attempt"]) == ("COMPLETED", 2)
    started = [e for e in await works.events(task["sandboxes"]["nodes"][0]["id"]) if e["type"] == "STARTED"]
    assert started[0]["payload"]["resumedSession"]


async def test_health_says_how_sandboxes_run(works):
    """The tier and what is limited, and each loop without an error."""
    answer = await works.account("{ health { components { name status detail } loops { name lastError } } }")
    [found] = [one for one in answer.data["health"]["components"] if one["name"] == "sandboxes"]
    assert "tier NAMESPACES" in found["detail"]
    assert {loop["lastError"] for loop in answer.data["health"]["loops"]} == {None}
