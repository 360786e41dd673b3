"""Tells what the agent does: each message of the SDK and each use of a tool becomes events."""

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import claude_agent_sdk as sdk

from worker.edits import Edits
from worker.git import GitFailed, Repository
from worker.spool import LARGEST_BLOB_BYTES, Spool

HOOK_SECONDS = 600.0
SUBAGENTS = {"Agent", "Task"}
BLOCKS: Mapping[type, str] = {sdk.TextBlock: "text", sdk.ThinkingBlock: "thinking", sdk.ToolUseBlock: "tool_use"}
NOISE = {"thinking_tokens", "task_started", "task_progress", "task_updated", "task_notification", "status"}
INIT = ("model", "permissionMode", "tools", "cwd", "claude_code_version")


class Story:
    """A turn is one response of the model to the main agent; `turn` counts them from 1 in this sandbox."""

    def __init__(self, spool: Spool, repository: Repository, edits: Edits) -> None:
        self.turn = 0
        self.heard = time.monotonic()  # when the agent last gave a sign of life
        self.last_text = ""
        self._spool, self._repository, self._edits = spool, repository, edits
        self._response: str | None = None
        self._seen: set[str] = set()  # tool uses that a hook has told to their end
        self._subagents: dict[str, str] = {}

    def tell(self, event: str, /, *, by: str = "WORKER", **payload: Any) -> None:
        self._spool.append(event, payload, source=by, turn=self.turn or None)

    def write(self, line: str) -> None:
        """To the sandbox's log."""
        sys.stderr.write(f"{line}\n")

    def log(self, text: str, level: str = "info") -> None:
        self.write(text)
        self.tell("LOG", text=text, level=level)

    async def compare(self, tool_use_id: str | None = None, path: str | None = None, by: str = "AGENT") -> None:
        """Tell what has changed in the working tree. A tree that git cannot read is no reason to stop."""
        try:
            for change in await self._edits.compare(path):
                self.tell("FILE_EDITED", by=by, **change.payload(tool_use_id))
        except (GitFailed, OSError) as error:
            self.log(f"The changes could not be read: {error}", "error")

    def hooks(self) -> dict[Any, list[sdk.HookMatcher]]:
        named = {"PreToolUse": self._before, "PostToolUse": self._after, "PostToolUseFailure": self._after}
        return {event: [sdk.HookMatcher(hooks=[hook], timeout=HOOK_SECONDS)] for event, hook in named.items()}

    def hear(self, message: sdk.Message) -> None:
        self.heard = time.monotonic()
        if isinstance(message, sdk.AssistantMessage):
            self._answer(message)
        elif isinstance(message, sdk.UserMessage):
            for block in message.content:
                if isinstance(block, sdk.ToolResultBlock):
                    text, name = _output(block.content), block.tool_use_id
                    unseen = {} if name in self._seen else {"text": text}
                    self._agent(
                        "USER_TOOL_RESULT",
                        toolUseId=name,
                        isError=bool(block.is_error),
                        sizeBytes=_size(text),
                        **unseen,
                    )
        elif isinstance(message, sdk.ResultMessage):
            told = {"isError": message.is_error, "terminalReason": message.terminal_reason, "usage": message.usage}
            self._agent("SYSTEM_MESSAGE", subtype="result", text=message.result or "", **told)
        elif isinstance(message, sdk.SystemMessage) and message.subtype not in NOISE:
            self._agent("SYSTEM_MESSAGE", subtype=message.subtype, **_system(message.data))

    async def _before(self, _given: sdk.HookInput, _name: str | None, _: sdk.HookContext) -> sdk.HookJSONOutput:
        self.heard = time.monotonic()
        return {}

    async def _after(self, given: sdk.HookInput, _name: str | None, _: sdk.HookContext) -> sdk.HookJSONOutput:
        """A tool has ended, well or badly. The agent goes on when this returns."""
        self.heard = time.monotonic()
        use: Mapping[str, Any] = dict(given)
        name, tool, shell = use["tool_use_id"], use["tool_name"], {}
        self._seen.add(name)
        if tool in ("Write", "Edit"):
            await self.compare(name, use["tool_input"].get("file_path"))
        elif tool == "Bash":
            await self.compare(name)
            shell = {"head": await self._repository.head(), "tree": self._edits.tree}
        failed = use["hook_event_name"] == "PostToolUseFailure"
        output = str(use["error"]) if failed else _output(use.get("tool_response"))
        told = {"output": output, "truncated": False, "sizeBytes": _size(output), "durationMs": use.get("duration_ms")}
        self._agent("TOOL_COMPLETED", toolUseId=name, tool=tool, isError=failed, **told, **shell)
        if subagent := self._subagents.pop(name, None):
            status = "failed" if failed else "completed"
            self._agent("SUBAGENT_COMPLETED", toolUseId=name, subagent=subagent, status=status, text=output)
        return {}

    def _answer(self, message: sdk.AssistantMessage) -> None:
        parent = {"parent": message.parent_tool_use_id} if message.parent_tool_use_id else {}
        if not parent and message.message_id != self._response:
            self._response = message.message_id
            self.turn += 1
        kinds = [BLOCKS.get(type(block), "other") for block in message.content]
        self._agent("ASSISTANT_MESSAGE", model=message.model, stopReason=message.stop_reason, blocks=kinds, **parent)
        for block in message.content:
            if isinstance(block, sdk.TextBlock):
                self.last_text = self.last_text if parent else block.text
                self._agent("MESSAGE", text=block.text, **parent)
            elif isinstance(block, sdk.ThinkingBlock) and block.thinking:
                self._agent("THINKING", text=block.thinking)
            elif isinstance(block, sdk.ToolUseBlock):
                self._agent("TOOL_USE", toolUseId=block.id, tool=block.name, input=block.input, **parent)
                if block.name in SUBAGENTS:
                    self._subagents[block.id] = name = str(block.input.get("subagent_type", "general-purpose"))
                    wish = block.input.get("description", "")
                    self._agent("SUBAGENT_STARTED", toolUseId=block.id, subagent=name, description=wish)

    def _agent(self, event: str, /, **payload: Any) -> None:
        self.tell(event, by="AGENT", **payload)


def _system(data: Mapping[str, Any]) -> dict[str, Any]:
    if "retry_delay_ms" not in data:
        return {"text": "", **{name: data[name] for name in INIT if name in data}}
    status = data.get("error_status")
    text = f"The model could not be asked ({status or data.get('error')}); trying again."
    return {"text": text, "attempt": data.get("attempt"), "status": status, "delayMs": data["retry_delay_ms"]}


def _output(response: Any) -> str:
    """What a tool answered, whole: the program cuts long output of commands, but keeps it in a file."""
    if isinstance(response, list):
        return "\n".join(map(_output, response))
    if not isinstance(response, dict):
        return response if isinstance(response, str) else json.dumps(response)
    if response.get("persistedOutputPath"):
        with Path(response["persistedOutputPath"]).open("rb") as kept:
            return kept.read(LARGEST_BLOB_BYTES).decode("utf-8", "replace")
    if "stdout" in response:
        return "\n".join(filter(None, (str(response["stdout"]), str(response.get("stderr") or ""))))
    if "structuredPatch" in response:  # the change itself is told by FILE_EDITED
        return f"{response.get('type', 'update')} {response.get('filePath', '')}"
    inner = [response[name] for name in ("text", "file", "content", "filenames") if name in response]
    inner = [each for each in inner if each and each != "text"]
    return _output(inner[0]) if inner else json.dumps(response)


def _size(text: str) -> int:
    return len(text.encode("utf-8", "replace"))
