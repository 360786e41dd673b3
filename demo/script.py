"""What a script is: a generator that yields the model's answers and is told what came back after each.

Nothing is kept between requests: the script is played again from its start over what the request tells. So a request
that is sent twice gets the same answer, and a resumed or forked session goes on where it was.
"""

import re
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Literal

from demo.conversation import Conversation, Reply

MARK = "[scripted model] "  # begins each closing text: nobody shall take it for a real model's
UNREAD = re.compile(r"has not been read|read it first", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Use:
    """The wish to use a tool."""

    tool: str
    input: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One answer of the model."""

    text: str = ""
    thinking: str = ""  # sent only to who asked for thinking
    uses: tuple[Use, ...] = ()
    more_input_tokens: int = 0  # beyond what the request's size tells
    more_output_tokens: int = 0
    breaks: Literal["", "stall", "cut"] = ""  # it begins, and then says nothing more or loses the connection


Script = Generator[Turn, Reply, str]  # what it returns is the closing text
Part = Generator[Turn, Reply, Reply]  # a piece of a script: what it returns is the last that came back


def next_turn(script: Callable[[Conversation], Script], conversation: Conversation) -> Turn:
    """The answer that this conversation waits for. After its end a script says its closing text again."""
    playing = script(conversation)
    try:
        turn = next(playing)
        for reply in conversation.replies:
            turn = playing.send(reply)
    except StopIteration as end:
        return Turn(text=MARK + end.value)
    missing = sorted({use.tool for use in turn.uses} - conversation.tools)
    if missing:
        return Turn(text=f"{MARK}I would need the tool {missing[0]}, which is not offered here.")
    return turn


def bash(command: str, description: str, **more: object) -> Use:
    return Use("Bash", {"command": command, "description": description, **more})


def run(command: str, description: str, *, text: str = "") -> Part:
    """Run one command."""
    return (yield Turn(text=text, uses=(bash(command, description),)))


def write(path: str, content: str, *, text: str = "", thinking: str = "") -> Part:
    """Write a file; one that is there already is read first, as the tool demands."""
    wanted = Use("Write", {"file_path": path, "content": content})
    reply = yield Turn(text=text, thinking=thinking, uses=(wanted,))
    if reply.failed and UNREAD.search(reply.output):
        yield Turn(uses=(Use("Read", {"file_path": path}),))
        reply = yield Turn(uses=(wanted,))
    return reply


def edit(path: str, old: str, new: str, *, text: str = "") -> Part:
    """Change one place in a file that was written or read in this conversation."""
    return (yield Turn(text=text, uses=(Use("Edit", {"file_path": path, "old_string": old, "new_string": new}),)))
