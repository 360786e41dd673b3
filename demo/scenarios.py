"""The scripts that get their work done, and the table by which a task chooses one of all."""

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass

from demo import faults
from demo.conversation import Conversation
from demo.script import MARK, Script, Turn, Use, edit, run, write

TAG = re.compile(r"\[\[([a-z0-9-]+)\]\]")
FENCED = re.compile(r"^```[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
WANTED = re.compile(r"\bC\((\d{1,4}), ?(\d{1,4})\)")
REPORT = re.compile(r"The report follows:\n(.*?)(?:\nagentId:|\Z)", re.DOTALL)
COMPUTED = re.compile(r"C\(\d+,\d+\) = [\d,]+")
LISTENS = 1000  # how often `message` looks for one

BINOMIAL = '''\
"""Binomial coefficients, computed exactly."""

import json
import os


def binomial(n, k):
    value = 1
    for i in range(k):
        value = value * (n - i) // (i + 1)
    return value


n, k = 5, 2
value = binomial(n, k)
print(f"C({n},{k}) = {value:,}")
if path := os.environ.get("OMOI_RESULT"):
    with open(path, "w") as file:
        json.dump({f"C({n},{k})": value}, file)
'''

TOTAL = '''\
def total(numbers):
    """The sum of all numbers."""
    result = 0
    for number in numbers[1:]:
        result += number
    return result
'''

TEST_TOTAL = """\
import unittest

from total import total


class TotalTest(unittest.TestCase):
    def test_total(self):
        self.assertEqual(total([1, 2, 3]), 6)


if __name__ == "__main__":
    unittest.main()
"""
NAMES_FAILURE = re.compile(r"test_total|AssertionError|\bfail", re.IGNORECASE)


def tour(conversation: Conversation) -> Script:
    """Compute a binomial coefficient with a program; the number said is the one that the program printed."""
    wanted = WANTED.search(conversation.task)
    n, k = wanted.groups() if wanted else ("50", "25")
    yield from write(
        "binomial.py",
        BINOMIAL,
        thinking="The product formula stays in integers, so the result is exact. A small case comes first.",
        text="I will write a small program and try it with a case that is easy to check.",
    )
    tried = yield from run("python3 binomial.py", "Run the small case")
    yield from edit("binomial.py", "n, k = 5, 2", f"n, k = {n}, {k}", text=f"{tried.output} is right. Now C({n},{k}).")
    ran = yield from run("python3 binomial.py", "Compute the result")
    printed = COMPUTED.search(ran.output)
    return f"The program says: {printed[0]}" if printed else f"The program did not say it: {ran.output}"


def failing_check(_: Conversation) -> Script:
    """Write code whose test fails, and repair it when told of the failure."""
    yield from write("test_total.py", TEST_TOTAL)
    yield from write("total.py", TOTAL)
    told = yield Turn(text="I have written `total` and a test of it.")
    while not NAMES_FAILURE.search(told.prompt):
        told = yield Turn(text="I have heard of no failure, so I leave it as it is.")
    yield from edit("total.py", "numbers[1:]", "numbers", text="It leaves the first number out.")
    ran = yield from run("python3 test_total.py", "Run the test")
    return "The test still fails." if ran.failed else "Repaired: `total` counts the first number too."


def subagent(_: Conversation) -> Script:
    """Give a part of the work to a subagent and answer with what it reports."""
    asked = {
        "description": "Review the folder",
        "prompt": "[[review]] Review what is here.",
        "run_in_background": False,
    }
    reply = yield Turn(uses=(Use("Agent", {**asked, "subagent_type": "code-reviewer"}),))
    if reply.failed:
        reply = yield Turn(uses=(Use("Agent", {**asked, "subagent_type": "general-purpose"}),))
    report = REPORT.search(reply.output)
    return f"The reviewer reports: {(report[1] if report else reply.output).strip().removeprefix(MARK)}"


def review(conversation: Conversation) -> Script:
    """What the subagent does: it counts, with whatever tool it was given."""
    if "Bash" in conversation.tools:
        counted = yield from run("ls -A | wc -l", "Count the entries")
    elif "Glob" in conversation.tools:
        counted = yield Turn(uses=(Use("Glob", {"pattern": "*"}),))
    else:
        return "I was given no tool to look with."
    return f"I looked at the folder and found: {counted.output}"


def rename_delete(_: Conversation) -> Script:
    """Files that only the shell touches: made, then renamed, deleted, made executable."""
    yield from run(
        "printf 'one\\ntwo\\nthree\\n' > old.txt && echo doomed > doomed.txt && echo 'echo hello' > hello.sh",
        "Make three files",
    )
    yield from run(
        "mv old.txt new.txt && rm doomed.txt && chmod +x hello.sh && echo fresh > fresh.txt",
        "Rename, delete, change a mode, make a file",
    )
    return "Renamed old.txt to new.txt, deleted doomed.txt, made hello.sh executable, added fresh.txt."


def conflict(conversation: Conversation) -> Script:
    """Every task that does this wants the same line of the same file for itself."""
    line = shlex.quote(f"owner: {title(conversation.task)}")
    yield from run(f"printf '%s\\n' '# Shared' {line} '# End' > SHARED.md", "Take the line")
    return "The line in SHARED.md is mine."


def message(_: Conversation) -> Script:
    """Work in short steps until somebody says something, then quote it."""
    for _listened in range(LISTENS):
        reply = yield from run("sleep 0.3", "Wait for a message")
        if reply.heard:
            return f"You said: {reply.heard[0]}"
    return "Nobody said anything."


def obedient(conversation: Conversation) -> Script:
    """Run the command lines that stand between ``` fences in the task, one a step, whatever they answer."""
    fenced = FENCED.search(conversation.task)
    lines = [line for line in (fenced[1] if fenced else "").splitlines() if line.strip()]
    for line in lines:
        yield from run(line, "As the task says")
    return f"Ran {len(lines)} commands."


def answer(conversation: Conversation) -> Script:
    """Just words."""
    return f"You asked: {title(conversation.task)}"
    yield  # a script is a generator


def notes(conversation: Conversation) -> Script:
    """What happens when no word of the task chooses anything."""
    yield from write("NOTES.md", f"# {title(conversation.task)}\n\nWritten by the scripted model.\n")
    return "I am a script and cannot do this task; I have written its title to NOTES.md."


def title(task: str) -> str:
    """The first line of the task, without tags."""
    lines = (TAG.sub("", line).strip(" #") for line in task.splitlines())
    return next(filter(None, lines), "No title")


@dataclass(frozen=True, slots=True)
class Scenario:
    """A script with the words that choose it. `status` is a refusal by the API instead of a script."""

    name: str
    words: str  # a pattern; "" leaves only the tag
    play: Callable[[Conversation], Script] = notes
    status: int = 200


# The first whose words are in the task. Phrases rather than words: a ticket about a memory leak shall not cause one.
SCENARIOS = (
    Scenario("tour", r"\bC\(\d+, ?\d+\)|binomial coefficient", tour),
    Scenario("failing-check", r"fail(s|ing)? (the|a|its) check|failing check", failing_check),
    Scenario("crash-once", r"crash once", faults.crash_once),
    Scenario("crash", r"crash (the|your) agent|crash yourself", faults.crash),
    Scenario("stall", r"stall in the middle|fall silent", faults.stall),
    Scenario("cut", r"lose your connection", faults.cut),
    Scenario("loop", r"loop for ?ever", faults.loop),
    Scenario("subagent", r"\bsub-?agent\b", subagent),
    Scenario("review", "", review),
    Scenario("rename-delete", r"rename and delete", rename_delete),
    Scenario("secret", r"print (the|your) (api key|secret)", faults.secret),
    Scenario("long", r"sleep for long|one long command", faults.long),
    Scenario("slow", r"slow steps|work slowly", faults.slow),
    Scenario("memory", r"use up (all )?(the )?memory", faults.memory),
    Scenario("budget", r"use up (all )?(the )?budget", faults.budget),
    Scenario("conflict", r"take the shared line", conflict),
    Scenario("message", r"wait for (a|my) message", message),
    Scenario("obedient", r"run (exactly )?these commands", obedient),
    Scenario("escape", "", obedient),
    Scenario("answer", r"just answer|only answer", answer),
    Scenario("busy", r"model is busy", status=529),
    Scenario("http400", "", status=400),
    Scenario("http401", "", status=401),
    Scenario("http403", "", status=403),
    Scenario("http429", "", status=429),
    Scenario("http500", "", status=500),
    Scenario("http529", "", status=529),
    Scenario("notes", "", notes),
)
BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}


def choose(task: str) -> Scenario:
    """By the first tag that names a scenario, else by the first words that are in the task, else `notes`."""
    for tag in TAG.findall(task):
        if tag in BY_NAME:
            return BY_NAME[tag]
    by_words = (each for each in SCENARIOS if each.words and re.search(each.words, task, re.IGNORECASE))
    return next(by_words, BY_NAME["notes"])
