"""The scripts, played with the real agent: what they promise really happens in its folder."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from base64 import b64encode

import psutil
import pytest
from claude_agent_sdk import ProcessError, TaskNotificationMessage

from demo import faults, scenarios
from demo.script import MARK
from tests.demo.agent import Run, client, converse, listen
from tests.servers import until

NUMBER = "C(50,25) = 126,410,606,437,752"


@pytest.mark.parametrize("task", ["Compute C(50,25) with a program.", "[[tour]] go", "Find a binomial coefficient."])
async def test_tour_computes_the_number(url, alone, monkeypatch, task):
    """The number comes out of the program that was written, and lies in the result file as well."""
    monkeypatch.setenv("OMOI_RESULT", str(alone / "result.json"))
    run = await converse(url, alone, task)
    assert NUMBER in run.result.result
    assert run.result.result.startswith(MARK)
    assert run.tools == ["Write", "Bash", "Edit", "Bash"]
    assert run.thoughts
    assert run.model == "scripted"
    assert json.loads((alone / "result.json").read_text()) == {"C(50,25)": 126410606437752}


async def test_tour_says_what_the_program_says(url, alone):
    """Another question has another answer, and no program no number."""
    other = await converse(url, alone, "Compute C(10,3) with a program.")
    assert "C(10,3) = 120" in other.result.result
    denied = await converse(url, alone, "[[tour]] go", permission_mode="dontAsk", allowed_tools=["Write", "Edit"])
    assert "126" not in denied.result.result


@pytest.mark.parametrize(
    ("name", "tools"), [("claude-sonnet-4-5", ["Write", "Read", "Write"]), ("claude-opus-5-5", ["Write"])]
)
async def test_writes_over_what_is_there(url, alone, name, tools):
    """A file of an earlier attempt is replaced, whether or not the program wants it to be read first."""
    alone.mkdir()
    (alone / "NOTES.md").write_text("Earlier.\n")
    run = await converse(url, alone, "Paint the fence\n\nin blue", model=name)
    assert run.tools == tools
    assert (alone / "NOTES.md").read_text().startswith("# Paint the fence\n")


async def test_repairs_what_the_feedback_names(url, alone):
    """The check fails after the first round; other feedback changes nothing; told of the failure it is repaired."""
    run = Run(alone)
    check = [sys.executable, "test_total.py"]
    async with client(url, alone) as agent:
        for prompt, status in (("[[failing-check]] go", 1), ("Well done.", 1), ("AssertionError: 5 != 6", 0)):
            await agent.query(prompt)
            await listen(agent, run)
            checked = await asyncio.to_thread(subprocess.run, check, cwd=alone, capture_output=True, check=False)
            assert checked.returncode == status
    assert "Repaired" in run.result.result


@pytest.mark.parametrize("agents", [None, {}])
async def test_subagent_reports(url, alone, agents):
    """The subagent has its own conversation and tools; its report is what the agent answers with."""
    alone.mkdir()
    (alone / "one").touch()
    run = await converse(url, alone, "[[subagent]] go", **({} if agents is None else {"agents": agents}))
    assert run.tools[0] == "Agent"
    assert "Bash" in run.tools
    assert "The reviewer reports: I looked at the folder and found: 1" in run.result.result
    assert any(isinstance(message, TaskNotificationMessage) for message in run.messages)


async def test_rename_and_delete(url, alone):
    """The shell renames, deletes, adds and changes a mode."""
    await converse(url, alone, "[[rename-delete]] go")
    assert sorted(path.name for path in alone.iterdir()) == ["fresh.txt", "hello.sh", "new.txt"]
    assert os.access(alone / "hello.sh", os.X_OK)


async def test_conflicting_tasks_write_the_same_line(url, alone):
    """Two tasks leave two contents of one line."""
    written = []
    for task in ("It's mine [[conflict]]", "No, mine [[conflict]]"):
        await converse(url, alone, task)
        written.append((alone / "SHARED.md").read_text().splitlines())
    assert written == [["# Shared", "owner: It's mine", "# End"], ["# Shared", "owner: No, mine", "# End"]]


async def test_message_is_heard_while_working(url, alone):
    """Somebody speaks to the running agent; the agent ends its turn with a quotation."""
    run = Run(alone)
    async with client(url, alone) as agent:
        await agent.query("[[message]] go")
        listening = asyncio.create_task(listen(agent, run))
        await until(lambda: run.outputs)
        await agent.query("Use the blue paint")
        await listening
    assert "You said: Use the blue paint" in run.result.result


async def test_obeys_the_fence(url, alone):
    """Exactly the fenced lines are run, in order, also after one that fails."""
    task = "Run these commands:\n\n```sh\necho one\n\nfalse\necho $((1 + 1))\n```\nand no more: `echo three`"
    run = await converse(url, alone, task)
    assert run.outputs == ["one", "Exit code 1", "2"]
    assert "Ran 3 commands." in run.result.result


async def test_only_answers(url, alone):
    """Just words, and a session that is resumed gets them again."""
    run = await converse(url, alone, "Just answer this.")
    assert run.tools == []
    again = await converse(url, alone, "And now?", resume=run.result.session_id)
    assert again.result.result == run.result.result == f"{MARK}You asked: Just answer this."


async def test_crash_kills_the_agent(url, alone):
    """The agent's program dies of signal 9 in the middle of a tool."""
    with pytest.raises(ProcessError) as raised:
        await converse(url, alone, "[[crash]] go")
    assert raised.value.exit_code == -9


async def test_crash_once_survives_the_second_attempt(url, alone, monkeypatch):
    """The attempt that the sandbox was told decides."""
    with pytest.raises(ProcessError):
        await converse(url, alone, "[[crash-once]] go")
    monkeypatch.setenv("TASK_DATA_BASE64", b64encode(json.dumps({"task": {"attempt": 2}}).encode()).decode())
    await converse(url, alone, "[[crash-once]] go")
    assert (alone / "survived.txt").exists()


async def test_loop_ends_at_the_turn_limit(url, alone):
    """The same failing command again and again, until the limit."""
    run = await converse(url, alone, "[[loop]] go", max_turns=4)
    assert run.result.subtype == "error_max_turns"
    assert len(set(run.outputs)) == 1


def sleeping():
    """Whether the command of `long` runs below this process."""
    commands = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            commands.append(process.cmdline()[1:])
    return ["-c", "import time; time.sleep(590)"] in commands


async def test_long_command_can_be_interrupted(url, alone):
    """An interrupt ends the command, and the next prompt the conversation."""
    run = Run(alone)
    async with client(url, alone) as agent:
        await agent.query("[[long]] go")
        listening = asyncio.create_task(listen(agent, run))
        await until(sleeping)
        await agent.interrupt()
        await listening
        assert run.result.terminal_reason == "aborted_tools"
        await until(lambda: not sleeping())
        await agent.query("Go on")
        await listen(agent, run)
    assert "The command has ended" in run.result.result


async def test_slow_steps_are_counted(url, alone):
    """The task says how many."""
    run = await converse(url, alone, "Work slowly, in 2 steps.")
    assert run.outputs == ["step 1 of 2", "step 2 of 2"]


async def test_budget_is_spent_and_the_work_saved(url, alone):
    """Each turn costs much; a warning on the way is answered by saving."""
    run = Run(alone)
    async with client(url, alone, max_turns=20) as agent:
        await agent.query("[[budget]] go")
        listening = asyncio.create_task(listen(agent, run))
        await until(lambda: run.outputs)
        await agent.query("The budget is nearly spent")
        await listening
    assert run.result.usage["input_tokens"] > 15 * faults.BUDGET_INPUT_TOKENS
    assert run.tools.count("Write") == 1
    assert "The budget is nearly spent" in (alone / "SAVED.md").read_text()


async def test_secret_is_printed_in_every_shape(url, alone):
    """The key comes in two halves, whole, in base64 and as in a URL; the model then repeats it all."""
    run = await converse(url, alone, "[[secret]] go")
    key = os.environ["ANTHROPIC_API_KEY"]
    assert run.outputs[0] + run.outputs[1] == run.outputs[2] == key
    assert run.outputs[3:] == [b64encode(key.encode()).decode(), "a-dummy%2Fkey%2Bof%3Dtests"]
    assert all(output in run.result.result for output in run.outputs)


async def test_memory_is_used_up():
    """The command takes whatever it is given, here 512 MiB."""
    limited = f"ulimit -v {512 << 10}; {faults.FILL_MEMORY}"
    process = await asyncio.create_subprocess_shell(limited, stderr=asyncio.subprocess.PIPE)
    _, err = await process.communicate()
    assert b"MemoryError" in err


async def test_four_at_once(url, alone):
    """Conversations that run at the same time do not meet."""
    tasks = ["[[tour]] a", "[[tour]] C(10,3)", "[[rename-delete]] c", "[[answer]] d"]
    runs = await asyncio.gather(*(converse(url, alone.with_name(f"work-{task[-1]}"), task) for task in tasks))
    said = [run.result.result for run in runs]
    assert all(part in text for part, text in zip([NUMBER, "C(10,3) = 120", "Renamed", "d"], said, strict=True))


def test_tags_come_before_words():
    """A tag chooses exactly; an ordinary ticket chooses nothing that hurts."""
    assert scenarios.choose("Compute C(50,25) [[unknown]] [[crash]]").name == "crash"
    for task in ("Fix the memory leak", "The app crashes at start", "Stalled uploads are slow", "Rotate the API key"):
        assert scenarios.choose(task).name == "notes"
