"""Tells what the agent does: each message of the SDK and each use of a tool becomes events."""

import functools
import json
import sys
import time
from pathlib import Path
from typing import Any

import claude_agent_sdk as sdk

from worker.edits import Edits
from worker.git import GitFailed, Repository
from worker.spool import LARGEST_BLOB_BYTES, Spool

HOOK_SECONDS = 600.0
BLOCKS: dict[type, str] = {sdk.TextBlock: "text", sdk.ThinkingBlock: "thinking", sdk.ToolUseBlock: "tool_use"}
RETRY = {"attempt": "attempt", "most": "max_retries", "status": "error_status", "delayMs": "retry_delay_ms"}
NOISE = {"thinking_tokens", "task_started", "task_progress", "task_updated", "task_notification", "status"}
write = functools.partial(print, file=sys.stderr, flush=True)  # to the sandbox's log


class Story:
    """A turn is one response of the model to the main agent; `turn` counts them from 1 in this sandbox."""

    def __init__(self, spool: Spool, repository: Repository, edits: Edits) -> None:
        self.turn = 0
        self.heard = time.monotonic()  # when the agent last gave a sign of life
        self.trouble = ""  # why it has given none since
        self.last_text = ""
        self._spool, self._repository, self._edits = spool, repository, edits
        self._response: str | None = None
        self._seen: set[str] = set()  # tool uses that a hook has told to their end
        self._subagents: dict[str, str] = {}

    def tell(self, event: str, /, *, by: str = "AGENT", **payload: Any) -> None:
        self._spool.append(event, payload, source=by, turn=self.turn or None)

    def log(self, text: str, level: str = "info") -> None:
        write(text)
        self.tell("LOG", by="WORKER", text=text, level=level)

    async def compare(self, path: str | None = None, by: str = "AGENT", **use: str) -> None:
        """Tell what has changed in the working tree. A tree that git cannot read is no reason to stop."""
        try:
            for change in await self._edits.compare(path):
                self.tell("FILE_EDITED", by=by, **use, **change)
        except (GitFailed, OSError) as error:
            self.log(f"The changes could not be read: {error}", "error")

    def hooks(self) -> dict[Any, list[sdk.HookMatcher]]:
        ended = [sdk.HookMatcher(hooks=[self._after], timeout=HOOK_SECONDS)]
        return {"PostToolUse": ended, "PostToolUseFailure": ended}

    def hear(self, message: sdk.Message) -> None:
        told: dict[str, Any]
        retrying = isinstance(message, sdk.SystemMessage) and message.subtype == "api_retry"
        self.heard, self.trouble = (self.heard, self.trouble) if retrying else (time.monotonic(), "")
        if isinstance(message, sdk.AssistantMessage):
            self._answer(message)
        elif isinstance(message, sdk.UserMessage):
            for block in message.content:
                if isinstance(block, sdk.ToolResultBlock):
                    text, name = _output(block.content), block.tool_use_id
                    told = {"isError": bool(block.is_error), "sizeBytes": len(text.encode("utf-8", "replace"))}
                    told |= {} if name in self._seen else {"text": text}
                    self.tell("USER_TOOL_RESULT", toolUseId=name, **told)
        elif isinstance(message, sdk.ResultMessage):
            told = {"isError": message.is_error, "terminalReason": message.terminal_reason, "usage": message.usage}
            self.tell("SYSTEM_MESSAGE", subtype="result", text=message.result or "", **told)
        elif isinstance(message, sdk.SystemMessage) and message.subtype not in NOISE:
            told = {name: message.data[key] for name, key in RETRY.items() if key in message.data}
            why = told.get("status") or message.data.get("error")
            self.trouble = f"The model could not be asked ({why}); trying again." if retrying else ""
            self.tell("SYSTEM_MESSAGE", subtype=message.subtype, text=self.trouble, **told)

    async def _after(self, given: Any, _name: str | None, _: sdk.HookContext) -> sdk.HookJSONOutput:
        self.heard = time.monotonic()
        name, tool, shell = given["tool_use_id"], given["tool_name"], dict[str, Any]()
        self._seen.add(name)
        if tool in ("Write", "Edit"):
            await self.compare(given["tool_input"].get("file_path"), toolUseId=name)
        elif tool == "Bash":
            await self.compare(toolUseId=name)
            shell = {"head": await self._repository.head(), "tree": self._edits.tree}
        failed = given["hook_event_name"] == "PostToolUseFailure"
        output = str(given["error"]) if failed else _output(given.get("tool_response"))
        size, took = len(output.encode("utf-8", "replace")), given.get("duration_ms")
        told = {"output": output, "truncated": False, "sizeBytes": size, "durationMs": took}
        self.tell("TOOL_COMPLETED", toolUseId=name, tool=tool, isError=failed, **told, **shell)
        if subagent := self._subagents.pop(name, None):
            status = "failed" if failed else "completed"
            self.tell("SUBAGENT_COMPLETED", toolUseId=name, subagent=subagent, status=status, text=output)
        return {}

    def _answer(self, message: sdk.AssistantMessage) -> None:
        parent = {"parent": message.parent_tool_use_id} if message.parent_tool_use_id else {}
        if not parent and message.message_id != self._response:
            self._response = message.message_id
            self.turn += 1
        kinds = [BLOCKS.get(type(block), "other") for block in message.content]
        self.tell("ASSISTANT_MESSAGE", model=message.model, stopReason=message.stop_reason, blocks=kinds, **parent)
        for block in message.content:
            if isinstance(block, sdk.TextBlock):
                self.last_text = self.last_text if parent else block.text
                self.tell("MESSAGE", text=block.text, **parent)
            elif isinstance(block, sdk.ThinkingBlock) and block.thinking:
                self.tell("THINKING", text=block.thinking)
            elif isinstance(block, sdk.ToolUseBlock):
                self.tell("TOOL_USE", toolUseId=block.id, tool=block.name, input=block.input, **parent)
                if block.name in ("Agent", "Task"):
                    self._subagents[block.id] = name = str(block.input.get("subagent_type", "general-purpose"))
                    wish = block.input.get("description", "")
                    self.tell("SUBAGENT_STARTED", toolUseId=block.id, subagent=name, description=wish)


def _output(response: Any) -> str:
    """What a tool answered, whole: the program cuts long output of commands, but keeps it in a file."""
    if isinstance(response, list):
        return "\n".join(map(_output, response))
    if not isinstance(response, dict):
        return response if isinstance(response, str) else json.dumps(response)
    if kept := response.get("persistedOutputPath"):
        with Path(kept).open("rb") as file:
            return file.read(LARGEST_BLOB_BYTES).decode("utf-8", "replace")
    if "stdout" in response:
        return "\n".join(filter(None, (response["stdout"], response.get("stderr"))))
    if "structuredPatch" in response:  # the change itself is told by FILE_EDITED
        return f"{response.get('type', 'update')} {response.get('filePath', '')}"
    inner = [response[name] for name in ("text", "file", "content", "filenames") if response.get(name)]
    return _output(inner[0]) if inner else json.dumps(response)
