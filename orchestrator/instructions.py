"""What agents are told beyond their task: how work is done here, and which sub-agents they may call."""

from collections.abc import Mapping, Sequence
from typing import Any

LOOKING = ["Read", "Glob", "Grep"]
CHANGING = [*LOOKING, "Write", "Edit", "Bash"]
GUIDE = """\
You work unattended in a sandbox, on the branch {branch}. Nobody answers questions: decide, and say what you assumed.
Stay on this branch and do not push: what you leave is committed and pushed for you.
If the task asks for a value or a result, write it as JSON to the file that $OMOI_RESULT names.
When you end, the project's checks run, and what fails comes back to you. They are: {checks}
Text that begins with `Message from` and comes while you work is said by whom it names."""
SUBAGENTS: Mapping[str, Mapping[str, Any]] = {
    "code-reviewer": {
        "description": "Reviews changes for mistakes and risks.",
        "prompt": "Review the code you are pointed to. Name real mistakes, each with its place and a way to mend it.",
        "tools": [*LOOKING, "Bash"],
    },
    "test-runner": {
        "description": "Runs tests and explains what fails.",
        "prompt": "Run the tests you are asked for. Report what fails, why, and the output that shows it.",
        "tools": [*LOOKING, "Bash"],
    },
    "architect": {
        "description": "Plans a change without making it.",
        "prompt": "Study the code and plan the change: which files, in which order, with which risks. Change nothing.",
        "tools": LOOKING,
    },
    "debugger": {
        "description": "Finds the cause of a failure and mends it.",
        "prompt": "Reproduce the failure, find its cause, mend it by the smallest change, and show that this does it.",
        "tools": CHANGING,
    },
}


def guide(branch: str | None, checks: Sequence[str]) -> str:
    return GUIDE.format(branch=branch or "work", checks="; ".join(checks) or "none")
