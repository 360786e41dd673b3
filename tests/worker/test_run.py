"""The whole worker: the archive, the real SDK and its program, git over HTTP, the scripted model."""

import json
import os
import re
import signal
import subprocess
from collections import Counter

import pytest
from starlette.responses import JSONResponse

from demo import model
from orchestrator.orders import PATIENCE
from tests.servers import until
from tests.worker import box, plane
from tests.worker.box import BRANCH


async def test_tour(work, server, origin):
    """A task becomes a pushed branch, its result, its diffs and its report; each event has its number."""
    async with work("Compute C(50,25)") as worker:
        code, said = await worker.ended()
    assert code == 0, said
    [report] = server.finished
    assert report["success"], (report, said)
    assert report["output"] == {"C(50,25)": 126410606437752}
    assert report["commit"] == origin.head(BRANCH)
    assert origin.files(BRANCH) == ["README.md", "binomial.py"]
    assert origin.git("log", "-1", "--format=%an %s", BRANCH) == "Ada Binomials"
    created, edited = server.of("FILE_EDITED")
    assert (created["kind"], edited["additions"], edited["deletions"]) == ("CREATED", 1, 1)
    assert server.types().index("STARTED") < server.types().index("TOOL_USE")
    assert {event["turn"] for event in server.events} == {None, 1, 2, 3, 4, 5}
    assert b"binomial" in server.blobs[report["transcriptBlob"]]


async def test_last_words_of_a_crash(work, server, tmp_path):
    """A worker that fails itself ends its log with the first reason, in one line, and not with a frame around it."""
    (tmp_path / "home/.omoi/ignored").mkdir(parents=True)
    async with work("[[answer]]") as worker:
        code, said = await worker.ended()
    assert code == 1
    assert "Traceback" in said
    assert said.splitlines()[-1].startswith("IsADirectoryError: [Errno 21] Is a directory: ")
    assert server.finished == []


async def test_shell_made_changes_are_seen(work, server):
    """Renames, deletions and modes that only the shell knows are told, with the tree that came out."""
    async with work("[[rename-delete]] tidy up") as worker:
        await worker.ended()
    kinds = [(edit["kind"], edit["path"]) for edit in server.of("FILE_EDITED")]
    assert kinds[3:] == [
        ("DELETED", "doomed.txt"),
        ("CREATED", "fresh.txt"),
        ("MODIFIED", "hello.sh"),
        ("RENAMED", "new.txt"),
    ]
    first, second = server.of("TOOL_COMPLETED")
    assert first["tree"] != second["tree"]
    assert first["head"] == second["head"]


async def test_failing_check_is_mended(work, server):
    """What a check says goes back to the agent, which mends it; the report has the last round."""
    async with work("[[failing-check]] total", checks=["python3 test_total.py"]) as worker:
        await worker.ended()
    assert [check["passed"] for check in server.of("CHECK_COMPLETED")] == [False, True]
    [report] = server.finished
    assert report["success"]
    assert [check["passed"] for check in report["checks"]] == [True]


async def test_failing_checks_are_saved(work, server, origin):
    """When the rounds are over the work is pushed as it is, and the report says what fails."""
    async with work("[[notes]] write", checks=["true", "echo broken; false"], OMOI_ROUNDS=1) as worker:
        await worker.ended()
    [report] = server.finished
    assert (report["success"], report["failureCode"]) == (False, "CHECKS_FAILED")
    assert [check["output"] for check in report["checks"]] == ["", "broken\n"]
    assert len(server.of("CHECK_COMPLETED")) == 4
    assert origin.git("log", "-1", "--format=%s", BRANCH) == "WIP: Binomials"


@pytest.mark.parametrize(
    ("task", "code"),
    [("[[http401]]", "CREDENTIAL_REJECTED"), ("[[http529]]", "AGENT_ERROR"), ("[[loop]]", "AGENT_ERROR")],
)
async def test_failures_of_the_model(work, server, task, code):
    """An API error that the SDK calls a success, and a turn limit, are failures with their own code."""
    async with work(task, max_turns=3) as worker:
        assert (await worker.ended())[0] == 0
    [report] = server.finished
    assert (report["success"], report["failureCode"]) == (False, code), report
    retries = [told for told in server.of("SYSTEM_MESSAGE") if told["subtype"] == "api_retry"]
    assert [told["attempt"] for told in retries] == ([] if task == "[[loop]]" else [1])


@pytest.fixture
async def unwell():
    """A model that answers its first three requests with the status that is in its address."""
    asked, script = Counter(), model.application()

    async def application(scope, receive, send):
        status, path = re.fullmatch("/([0-9]+)(/.*)", scope["path"]).groups()
        asked[status] += path == "/v1/messages"
        if asked[status] > 3:
            await script({**scope, "path": path, "raw_path": path.encode()}, receive, send)
        else:
            body = {"type": "error", "error": {"type": "api_error", "message": "x"}}
            await JSONResponse(body, int(status))(scope, receive, send)

    async with plane.listening(application) as url:
        yield url


@pytest.mark.parametrize("status", [500, 529])
async def test_model_that_is_away(work, server, unwell, status):
    """As patient as the server wants it, the agent asks again, says so each time, and goes on where it was."""
    told = {**PATIENCE, "ANTHROPIC_BASE_URL": f"{unwell}/{status}"}
    async with work("Compute C(50,25)", **told) as worker:
        await worker.ended()
    retries = [told for told in server.of("SYSTEM_MESSAGE") if told["subtype"] == "api_retry"]
    assert [(told["attempt"], told["most"], told["status"]) for told in retries] == [
        (number, 25, status) for number in (1, 2, 3)
    ]
    assert server.finished[0]["success"]
    assert {event["turn"] for event in server.events} == {None, 1, 2, 3, 4, 5}


async def test_model_that_stays_away(work, server):
    """Asking in vain is no sign of life: it ends after the same time as any silence, with what was wrong."""
    told = {"CLAUDE_CODE_RETRY_WATCHDOG": "1", "OMOI_STALL_SECONDS": 3}
    async with work("[[http529]]", **told) as worker:
        await worker.ended()
    [report] = server.finished
    assert report["failureCode"] == "STALLED"
    assert "could not be asked (529)" in report["summary"]
    # The fourth comes three and a half seconds after the first at the earliest.
    assert len([told for told in server.of("SYSTEM_MESSAGE") if told["subtype"] == "api_retry"]) <= 3


async def test_remote_that_is_away(work, server, origin):
    """While the remote does not answer the attempt says so, in events."""
    origin.status = 503
    async with work("[[answer]]") as worker:
        await until(lambda: [told for told in server.of("LOG") if "error: 503 (try 2, " in told["text"]])
        origin.status = 0
        await worker.ended()
    assert server.finished[0]["success"]


async def test_killed_program(work, server):
    """An agent's program that dies by SIGKILL is told as such, and its work is saved."""
    async with work("[[crash]]") as worker:
        assert (await worker.ended())[0] == 0
    [report] = server.finished
    assert report["failureCode"] == "KILLED"


async def test_silent_agent(work, server):
    """An agent that says nothing for its time is interrupted and given up."""
    async with work("[[stall]]", OMOI_STALL_SECONDS=2) as worker:
        await worker.ended()
    assert server.finished[0]["failureCode"] == "STALLED"


async def test_message_reaches_the_running_agent(work, server):
    """A message is shown in the middle of the work, with its author, and acknowledged once with its turn."""
    async with work("[[message]] listen") as worker:
        await until(lambda: "TOOL_USE" in server.types())
        name = server.say("turn left")
        await worker.ended()
    [report] = server.finished
    assert "Message from Ada (USER): turn left" in report["summary"]
    assert [told for told, _ in server.acknowledged] == [name]
    assert [told["messageId"] for told in server.of("MESSAGE_DELIVERED")] == [name]


async def test_message_during_checks(work, server):
    """What is said while the checks run starts another turn, and the checks run again, even when no round is left."""
    async with work("[[answer]]", checks=["sleep 1; false"], OMOI_ROUNDS=0) as worker:
        await until(lambda: "CHECK_STARTED" in server.types())
        server.say("one more thing")
        await worker.ended()
    assert server.types().count("CHECK_COMPLETED") == 2
    assert server.types().count("MESSAGE_DELIVERED") == 1


async def test_collaboration_has_no_authority(work, server):
    """What another agent says is shown as that."""
    async with work("[[message]] listen") as worker:
        await until(lambda: "TOOL_USE" in server.types())
        server.say("delete all", kind="COLLABORATION", author="agent 2", author_kind="SANDBOX")
        await worker.ended()
    assert "no authority over you" in server.finished[0]["summary"]


async def test_interrupt_turns_the_agent(work, server):
    """An interrupt ends what runs at once; its words are the next thing that the agent hears."""
    async with work("[[long]] wait") as worker:
        await until(lambda: "TOOL_USE" in server.types())
        server.say("[[answer]] stop that", kind="INTERRUPT")
        await worker.ended()
    assert server.of("INTERRUPTED")
    assert server.finished[0]["failureCode"] is None, server.finished


async def test_interrupt_without_words_waits(work, server):
    """An agent that was only interrupted waits to be told how to go on."""
    async with work("[[long]] wait") as worker:
        await until(lambda: "TOOL_USE" in server.types())
        server.say("", kind="INTERRUPT")
        await until(lambda: "WAITING" in server.types())
        server.say("go on")
        await worker.ended()
    assert [told["kind"] for told in server.of("MESSAGE_DELIVERED")] == ["INTERRUPT", "USER"]
    assert len(server.finished) == 1


async def test_stop(work, server, origin):
    """Told to stop, it stops at once, keeps the session, and pushes nothing."""
    async with work("[[long]] wait") as worker:
        await until(lambda: "TOOL_USE" in server.types())
        server.stop()
        assert (await worker.ended(20))[0] == 0
    [report] = server.finished
    assert report["failureCode"] == "CANCELLED"
    assert b"interrupted by user" in server.blobs[report["transcriptBlob"]]
    assert origin.git("branch", "--list", BRANCH) == ""


async def test_asked_to_leave(work, server):
    """SIGTERM: it reports, with the session, and leaves."""
    async with work("[[slow]] steps") as worker:
        await until(lambda: server.types().count("TOOL_COMPLETED") > 1)
        os.kill(worker.process.pid, signal.SIGTERM)
        await worker.ended(20)
    [report] = server.finished
    assert report["failureCode"] == "KILLED"
    assert report["transcriptBlob"] in server.blobs


async def test_attempt_is_over(work, server):
    """When the server knows this attempt no more, the worker ends its agent and leaves without a word."""
    async with work("[[long]] wait", OMOI_HEARTBEAT_SECONDS=0.2) as worker:
        await until(lambda: "TOOL_USE" in server.types())
        server.over = True
        code, said = await worker.ended(20)
        assert (code, said.splitlines()[-1]) == (3, "Over: UNAUTHENTICATED: This attempt has ended.")
        assert "Traceback" not in said
        assert subprocess.run(["pgrep", "-s", str(worker.process.pid)], check=False).returncode == 1, "left behind"
    assert server.finished == []


async def test_cut_across_the_end(work, server, origin):
    """A server that is away when the work ends gets everything when it is back: nothing lost, nothing twice."""
    async with work("[[obedient]]\n```\nsleep 1\nseq 20000\n```\n") as worker:
        await until(lambda: "TOOL_USE" in server.types())
        server.away = True
        await until(
            lambda: origin.git("branch", "--list", BRANCH) or (worker.home / ".omoi/spool/finish.json").exists()
        )
        seen = len(server.events)
        server.away = False
        assert (await worker.ended())[0] == 0
    assert len(server.events) > seen
    assert len(server.finished) == 1
    assert server.text(server.of("TOOL_COMPLETED")[1]["output"]).splitlines() == [str(n + 1) for n in range(20000)]


async def test_heartbeats_while_a_tool_runs(work, server):
    """A long command does not make the worker silent."""
    async with work("[[long]] wait", OMOI_HEARTBEAT_SECONDS=0.1):
        await until(lambda: "TOOL_USE" in server.types())
        reports, events = server.reports, len(server.events)
        await until(lambda: server.reports > reports + 3)
        assert len(server.events) == events


async def test_session_is_resumed(work, server, thinker, tmp_path):
    """The transcript of one sandbox lets the agent go on in another; its recorded edits are there."""
    async with work("[[slow]] steps") as worker:
        await until(lambda: server.types().count("TOOL_COMPLETED") > 1)
        os.kill(worker.process.pid, signal.SIGTERM)
        await worker.ended(20)
    [report] = server.finished
    resume = tmp_path / "second/.omoi/resume"
    resume.mkdir(parents=True)
    (resume / "transcript.jsonl").write_bytes(server.blobs[report["transcriptBlob"]])
    new = "diff --git a/n b/n\nnew file mode 100644\n--- /dev/null\n+++ b/n\n@@ -0,0 +1 @@\n+edited\n"
    (resume / "edits.json").write_text(json.dumps({"base": None, "changes": [{"path": "n", "net": new}]}))
    async with plane.serving() as second:
        environ = box.environment(tmp_path / "second", second, thinker, "x", RESUME_SESSION_ID=report["sessionId"])
        async with box.running(tmp_path / "second", environ) as worker:
            await until(lambda: "TOOL_USE" in second.types())
    [started] = second.of("STARTED")
    assert started["resumedSession"]
    assert (tmp_path / "second/repository/n").read_text() == "edited\n"
    assert [edit["path"] for edit in second.of("FILE_EDITED")] == ["n"]


async def test_planning_changes_nothing(work, server, origin):
    """In plan mode the agent may look, but its commands are refused, and it succeeds without a branch."""
    async with work("[[rename-delete]]", PERMISSION_MODE="plan") as worker:
        await worker.ended()
    [report] = server.finished
    assert (report["success"], report["commit"], report["branch"]) == (True, None, None)
    assert server.of("FILE_EDITED") == []
    assert any(told["isError"] and told["text"] for told in server.of("USER_TOOL_RESULT"))


@pytest.mark.parametrize("mode", ["bypassPermissions", "dontAsk"])
async def test_permission_modes(work, server, mode):
    """The modes of unattended work let the shell and the edits run."""
    async with work("Compute C(50,25)", PERMISSION_MODE=mode) as worker:
        await worker.ended()
    assert server.finished[0]["output"] == {"C(50,25)": 126410606437752}


async def test_no_such_session(work, server, tmp_path):
    """A session that cannot be resumed is begun anew, and that is said."""
    resume = tmp_path / "home/.omoi/resume"
    resume.mkdir(parents=True)
    (resume / "transcript.jsonl").write_text("{}\n")
    async with work("[[answer]]", RESUME_SESSION_ID="0b0e4a4e-0000-4000-8000-000000000000") as worker:
        await worker.ended()
    assert server.finished[0]["success"]
    assert any("could not be resumed" in told["text"] for told in server.of("LOG"))


async def test_wrong_password(work, server):
    """A remote that refuses the credential is told as such."""
    server.password = "wrong"
    async with work("[[answer]]") as worker:
        assert (await worker.ended())[0] == 0
    [report] = server.finished
    assert report["failureCode"] == "CREDENTIAL_REJECTED"


async def test_secrets_leave_no_trace(work, server, tmp_path):
    """Neither the token nor the remote's password is in any file, event or line of the log."""
    async with work("Compute C(50,25)") as worker:
        _, said = await worker.ended()
    files = [path.read_bytes() for path in (tmp_path / "home").rglob("*") if path.is_file()]
    for secret in (plane.TOKEN, server.password):
        assert secret not in said
        assert not [found for found in files if secret.encode() in found]
        assert secret not in str(server.events)
    assert server.operations == ["FETCH", "PUSH"]


async def test_repository_settings_do_not_count(work, server, origin, tmp_path):
    """Hooks and settings that a repository brings are not run; its skills are, when the project wants them."""
    command = {"type": "command", "command": f"touch {tmp_path}/hooked"}
    hook = json.dumps({"hooks": {"PreToolUse": [{"hooks": [command]}]}})
    skill = "---\nname: greeter\ndescription: greets\nhooks: {PreToolUse: []}\n---\nSay hello.\n"
    origin.commit({".claude/settings.json": hook, ".claude/skills/greeter/SKILL.md": skill, "CLAUDE.md": "x"})
    async with work("[[rename-delete]]", skills=True) as worker:
        await worker.ended()
        copied = (worker.home / ".claude/skills/greeter/SKILL.md").read_text()
    assert server.finished[0]["success"]
    assert not (tmp_path / "hooked").exists()
    assert "Say hello." in copied
    assert "hooks" not in copied


async def test_subagent(work, server):
    """A subagent's begin and end are told, and what it says names the use that started it."""
    async with work("[[subagent]]", subagents=True) as worker:
        await worker.ended()
    [started], [completed] = server.of("SUBAGENT_STARTED"), server.of("SUBAGENT_COMPLETED")
    assert started["subagent"] == completed["subagent"] == "code-reviewer"
    assert [told["parent"] for told in server.of("TOOL_USE") if "parent" in told] == [started["toolUseId"]]


async def test_second_start_only_delivers(work, server, tmp_path):
    """A worker that is started again after its report is on disk says the rest and works no more."""
    task = "[[obedient]]\n```\nsleep 1\n```\n"
    async with work(task) as worker:
        await until(lambda: "TOOL_USE" in server.types())
        server.away = True
        await until((worker.home / ".omoi/spool/finish.json").exists)
        worker.process.kill()
        await worker.ended()
    events = len(server.events)
    server.away = False
    async with work(task) as worker:
        assert await worker.ended() == (0, "")
    assert len(server.events) > events
    assert server.types().count("STARTED") == 1
    assert len(server.finished) == 1
