"""What the agent is given: its tools, its environment, its helpers, and nothing of what the repository configures."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import claude_agent_sdk as sdk

from worker.orders import Orders

LARGEST_MESSAGE_BYTES = 128 << 20
READING = ["Read", "Glob", "Grep"]
TOOLS = ["Read", "Write", "Edit", "Bash", "Glob", "Grep"]
SWITCHES = (
    *("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS", "IS_SANDBOX"),
    *("DISABLE_AUTOUPDATER", "DISABLE_TELEMETRY", "DISABLE_ERROR_REPORTING"),
)
QUIET = dict.fromkeys(SWITCHES, "1")
RETRIES = "4"  # the program's own default takes minutes, even when the key is refused
SUBAGENTS = {
    "code-reviewer": ("Reviews changes for mistakes and risks.", [*READING, "Bash"],
        "Review the code you are pointed to. Name real mistakes, each with its place and a way to mend it."),
    "test-runner": ("Runs tests and explains what fails.", [*READING, "Bash"],
        "Run the tests you are asked for. Report what fails, why, and the output that shows it."),
    "architect": ("Plans a change without making it.", READING,
        "Study the code and plan the change: which files, in which order, with which risks. Change nothing."),
    "debugger": ("Finds the cause of a failure and mends it.", TOOLS,
        "Reproduce the failure, find its cause, make the smallest change that mends it, and show that it does."),
}  # fmt: skip
APPENDIX = """\
You work unattended in a sandbox, on the branch {branch}. Nobody answers questions: decide, and say what you assumed.
Stay on this branch and do not push: what you leave is committed and pushed for you.
If the task asks for a value or a result, write it as JSON to the file that $OMOI_RESULT names.
When you end, the project's checks run, and what fails comes back to you. They are: {checks}
Text that begins with `Message from` and comes while you work is said by whom it names."""
CGROUP_COUNTERS = ("memory.events", "memory/memory.oom_control")


def options(orders: Orders, environ: dict[str, str]) -> dict[str, Any]:
    subagents, skills = bool(orders.data.get("enableSubagents")), bool(orders.data.get("enableSkills"))
    tools = [*TOOLS, *(["Agent"] if subagents else ()), *(["Skill"] if skills else ())]
    if skills:
        _copy_skills(orders.repository / ".claude/skills", orders.home / ".claude/skills")
    given = {"ANTHROPIC_API_KEY": orders.token, "OMOI_RESULT": str(orders.result)}
    agents = {
        name: sdk.AgentDefinition(description=what, prompt=how, tools=[*its])
        for name, (what, its, how) in SUBAGENTS.items()
    }
    return {
        "cwd": orders.repository,
        "tools": tools,
        "allowed_tools": tools,  # runs without being asked; what plan mode refuses it refuses all the same
        "permission_mode": orders.permission_mode,
        "model": orders.environ.get("MODEL") or None,
        "max_turns": orders.data.get("maxTurns") or None,
        "system_prompt": {"type": "preset", "preset": "claude_code", "append": _appendix(orders)},
        "setting_sources": ["user"] if skills else [],  # the home is the sandbox's own; the repository's never count
        "skills": "all" if skills else None,
        "agents": agents if subagents else None,
        "settings": json.dumps({"attribution": {"commit": "", "pr": ""}}),
        "forward_subagent_text": subagents,
        "verbatim_prompts": True,  # a ticket's `/word` or `@file` is text, not a command
        "max_buffer_size": LARGEST_MESSAGE_BYTES,
        "env": {"CLAUDE_CODE_MAX_RETRIES": RETRIES, **environ, **QUIET, **given},
    }


def lay_transcript(orders: Orders) -> bool:
    """Put the session to resume where the SDK looks for it. False when there is none."""
    given = orders.state / "resume/transcript.jsonl"
    if not orders.session_id or not given.exists():
        return False
    folder = orders.home / ".claude/projects" / sdk.project_key_for_directory(orders.repository)
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(given, folder / f"{orders.session_id}.jsonl")
    return True


def transcript(home: Path, session_id: str) -> Path | None:
    return next(home.glob(f".claude/projects/*/{session_id}.jsonl"), None) if session_id else None


def out_of_memory_kills() -> int:
    """How often the kernel has killed in this sandbox for want of memory, as far as it shows."""
    for name in CGROUP_COUNTERS:
        path = Path("/sys/fs/cgroup", name)
        if path.exists() and (found := re.search(r"^oom_kill (\d+)", path.read_text(), re.MULTILINE)):
            return int(found[1])
    return 0


def _appendix(orders: Orders) -> str:
    checks = "; ".join(orders.data.get("checks") or ()) or "none"
    return APPENDIX.format(branch=orders.branch, checks=checks)


def _copy_skills(source: Path, target: Path) -> None:
    """A skill's name, description and text, and the files beside it; other front matter could run commands."""
    shutil.rmtree(target, ignore_errors=True)
    for folder in sorted(source.glob("*/SKILL.md")):
        copy = target / folder.parent.name
        shutil.copytree(folder.parent, copy, symlinks=True, ignore=shutil.ignore_patterns(".claude"))
        _, front, text = (*folder.read_text("utf-8", "replace").split("---\n", 2), "", "")[:3]
        lines = [line for line in front.splitlines() if line.startswith(("name:", "description:"))]
        (copy / "SKILL.md").unlink()
        (copy / "SKILL.md").write_text("\n".join(["---", *lines, "---", text]))
