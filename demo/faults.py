"""The scripts that go wrong on purpose, or use up what is limited."""

import re

from demo.conversation import Conversation
from demo.script import Script, Turn, bash, run, write

SLOW_STEPS = 10
MOST_STEPS = 1000
LONGEST_MILLISECONDS = 600_000
BUDGET_TURNS = 60
BUDGET_INPUT_TOKENS = 90_000  # a turn; more would make the agent's program summarise the conversation
BUDGET_OUTPUT_TOKENS = 8_000

# The attempt stands in what the sandbox was told at its start; without it every attempt is the first.
KILL_FIRST_ATTEMPT = """\
attempt=$(python3 -c 'import base64, json, os
told = base64.b64decode(os.environ.get("TASK_DATA_BASE64", "e30="))
print(json.loads(told).get("task", {}).get("attempt", 1))')
[ "$attempt" -gt 1 ] || kill -9 $PPID"""

SLEEP_LONG = "python3 -c 'import time; time.sleep(590)'"  # the agent's program refuses a bare `sleep`

FILL_MEMORY = """\
python3 -c 'kept = []
while True:
    kept.append(bytes([1]) * (1 << 24))'"""

PRINT_SECRET = (
    ('printf %s "$ANTHROPIC_API_KEY" | head -c $((${#ANTHROPIC_API_KEY} / 2))', "Print the first half"),
    ('printf %s "$ANTHROPIC_API_KEY" | tail -c +$((${#ANTHROPIC_API_KEY} / 2 + 1))', "Print the second half"),
    ('printf %s "$ANTHROPIC_API_KEY"', "Print it whole"),
    ('printf %s "$ANTHROPIC_API_KEY" | base64 -w0', "Print it in base64"),
    (
        'python3 -c \'import os, urllib.parse as u; print(u.quote(os.environ["ANTHROPIC_API_KEY"], safe=""))\'',
        "Print it as in a URL",
    ),
)


def crash(_: Conversation) -> Script:
    """Kill the agent's program from a tool, on every attempt."""
    yield from run("kill -9 $PPID", "Kill the agent")
    return "I could not kill the agent."


def crash_once(_: Conversation) -> Script:
    """Kill the agent's program on the first attempt of the task only."""
    yield from run(KILL_FIRST_ATTEMPT, "Kill the agent on the first attempt")
    yield from write("survived.txt", "This attempt was not the first.\n")
    return "I crashed once and then did it."


def stall(_: Conversation) -> Script:
    """Begin to answer, and say nothing more."""
    yield Turn(text="I begin to answer and then", breaks="stall")
    return "I went on after all."


def cut(_: Conversation) -> Script:
    """Begin to answer, and lose the connection."""
    yield Turn(text="I begin to answer and then", breaks="cut")
    return "I went on after all."


def loop(_: Conversation) -> Script:
    """The same failing command until somebody ends it."""
    while True:
        yield from run("python3 no_such_program.py", "Try once more")


def long(_: Conversation) -> Script:
    """One command that runs for as long as a tool may."""
    ran = yield Turn(uses=(bash(SLEEP_LONG, "Work for long", timeout=LONGEST_MILLISECONDS),))
    return f"The command has ended: {ran.output}"


def slow(conversation: Conversation) -> Script:
    """So many steps of a second each: `7 slow steps`."""
    wanted = re.search(r"(\d+) (?:slow )?steps", conversation.task)
    steps = min(int(wanted[1]), MOST_STEPS) if wanted else SLOW_STEPS
    for step in range(1, steps + 1):
        yield from run(f"sleep 1; echo step {step} of {steps}", "Do a step")
    return f"Did {steps} steps."


def memory(_: Conversation) -> Script:
    """Take memory until the system says no."""
    ran = yield from run(FILL_MEMORY, "Take all memory")
    return f"The command has ended: {ran.output[:200]}"


def budget(_: Conversation) -> Script:
    """Expensive turns that do nothing; told something meanwhile, it saves its work and goes on spending."""
    for turn in range(1, BUDGET_TURNS + 1):
        reply = yield Turn(
            uses=(bash(f"echo turn {turn}", "Spend"),),
            more_input_tokens=BUDGET_INPUT_TOKENS,
            more_output_tokens=BUDGET_OUTPUT_TOKENS,
        )
        if reply.heard:
            yield from write("SAVED.md", f"Saved in turn {turn}: {reply.heard[0]}\n")
    return f"Spent {BUDGET_TURNS} turns."


def secret(_: Conversation) -> Script:
    """Print the key of the model in every shape, and repeat it, as a careless model might."""
    printed = []
    for command, description in PRINT_SECRET:
        ran = yield from run(command, description)
        printed.append(ran.output)
    return "It is " + " and ".join(printed)
