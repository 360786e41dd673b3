"""What the scripted model reads in a request: the task, and what followed each of its own answers."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

REMINDER = re.compile(r"<system-reminder>(.*?)</system-reminder>", re.DOTALL)
SAID_WHILE_WORKING = re.compile(
    r"The user sent a new message while you were working:\n(.*?)(?:\n\nThis is how |\Z)", re.DOTALL
)
FILLED_IN = "No response requested."  # the agent's program says it for the model when a session is resumed
INTERRUPTED = "[Request interrupted by user"  # and this for the user, when a turn is interrupted

Block = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Result:
    """What one tool answered, without what the agent's program adds to it."""

    text: str
    failed: bool


@dataclass(frozen=True, slots=True)
class Reply:
    """Everything that came between an answer of the model and its next one."""

    results: tuple[Result, ...] = ()
    prompt: str = ""  # what a person or the worker said after the turn had ended
    said: tuple[str, ...] = ()  # what a person said while the turn was running

    @property
    def output(self) -> str:
        return "\n".join(result.text for result in self.results)

    @property
    def failed(self) -> bool:
        return any(result.failed for result in self.results)

    @property
    def heard(self) -> tuple[str, ...]:
        return (*self.said, *((self.prompt,) if self.prompt else ()))


@dataclass(frozen=True, slots=True)
class Conversation:
    """A request as a script sees it. `replies` has one entry for each answer that the model has given."""

    task: str
    replies: tuple[Reply, ...]
    tools: frozenset[str]
    thinks: bool


class Malformed(Exception):
    """A request that the real API would refuse, with the sentence to say."""


def read(body: Any) -> Conversation:
    """The conversation in a request, or Malformed."""
    if not isinstance(body, dict) or not isinstance(body.get("model"), str) or not body["model"]:
        raise Malformed("model: Field required")
    if not isinstance(body.get("max_tokens"), int) or body["max_tokens"] < 1:
        raise Malformed("max_tokens: Field required")
    messages = [_message(message) for message in body.get("messages") or ()]
    if not messages or messages[0][0] != "user":
        raise Malformed("messages: first message must use the user role")
    _check_tools_answered(messages)
    first, *replies = _between_answers(messages)
    return Conversation(
        task=first.prompt,
        replies=tuple(replies),
        tools=frozenset(tool.get("name", "") for tool in body.get("tools") or ()),
        thinks=(body.get("thinking") or {}).get("type") in ("enabled", "adaptive"),
    )


def _message(message: Any) -> tuple[str, Sequence[Block]]:
    role, content = (message.get("role"), message.get("content")) if isinstance(message, dict) else (None, None)
    if role not in ("user", "assistant", "system"):
        raise Malformed("messages: roles are user and assistant")
    if isinstance(content, str):
        return role, [{"type": "text", "text": content}]
    if not isinstance(content, list) or not all(isinstance(block, dict) and "type" in block for block in content):
        raise Malformed("messages: content must be a string or a list of blocks")
    return role, content


def _check_tools_answered(messages: Sequence[tuple[str, Sequence[Block]]]) -> None:
    waiting: set[str] = set()
    for role, blocks in messages:
        answered = {str(block.get("tool_use_id")) for block in blocks if block["type"] == "tool_result"}
        if role == "assistant" and waiting:
            raise Malformed("messages: `tool_use` ids were found without `tool_result` blocks immediately after")
        if answered - waiting:
            raise Malformed("messages: unexpected `tool_use_id` found in `tool_result` blocks")
        waiting -= answered
        waiting |= {str(block.get("id")) for block in blocks if block["type"] == "tool_use"}
    if waiting:
        raise Malformed("messages: `tool_use` ids were found without `tool_result` blocks immediately after")


def _between_answers(messages: Sequence[tuple[str, Sequence[Block]]]) -> Iterator[Reply]:
    heard: list[tuple[str, Sequence[Block]]] = []
    for role, blocks in messages:
        if role != "assistant":
            heard.append((role, blocks))
        elif _text(blocks).strip() != FILLED_IN:
            yield _reply(heard)
            heard = []
    yield _reply(heard)


def _reply(heard: Sequence[tuple[str, Sequence[Block]]]) -> Reply:
    results, prompts, said = [], [], []
    for role, blocks in heard:
        for block in blocks:
            text = _text(block.get("content")) if block["type"] == "tool_result" else str(block.get("text", ""))
            asides = [text] if role == "system" else REMINDER.findall(text)
            said += [found.strip() for aside in asides for found in SAID_WHILE_WORKING.findall(aside)]
            text = REMINDER.sub("", text).strip()
            if block["type"] == "tool_result":
                results.append(Result(text, bool(block.get("is_error"))))
            elif role == "user" and text and not text.startswith(INTERRUPTED):
                prompts.append(text)
    return Reply(tuple(results), "\n\n".join(prompts), tuple(said))


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(str(block.get("text", "")) for block in content or () if isinstance(block, dict))
