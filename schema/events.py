"""What happens in a sandbox as clients see it: one type for each shape of data, in pages and live."""

from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

import strawberry

from app import auth, ids, reported
from app.enums import EventSource, SandboxEventType, SandboxStatus
from resolvers import events as resolve
from resolvers import files as resolve_files
from resolvers.events import Entry
from schema.activity import StreamReset
from schema.fields import Argument, described, field, subscription
from schema.files import FileChange
from schema.rules import SHARED, reached
from schema.scalars import JSON
from schema.tasks import CheckResult
from schema.usage import Usage

described(EventSource, "Who an event is about.")
described(SandboxEventType, "What sort of thing happened. New types may be added.")
described(
    SandboxStatus,
    "PROVISIONING → STARTING → RUNNING ⇄ WAITING → STOPPING → COMPLETED, FAILED, CANCELLED or LOST.",
)

Kind = TypeVar("Kind", bound=type)
_TYPE_NAMES: dict[SandboxEventType, str] = {}


def _id(context: Any, entry: Entry) -> str:
    return ids.encode("event", entry.row.id)


def _row(name: str, kind: Any, description: str) -> Any:
    def read(context: Any, entry: Entry) -> Any:
        return getattr(entry.row, name)

    return field(read, kind, description)


def _text(name: str, description: str) -> Any:
    return field(lambda _, entry: reported.text(entry.row.payload, name), str, description)


def _truth(name: str, description: str) -> Any:
    return field(lambda _, entry: reported.truth(entry.row.payload, name), bool, description)


@strawberry.interface(
    description="Something that happened in a sandbox. A client that meets an unknown type has this.",
    directives=SHARED,
)
class SandboxEvent:
    id = field(_id, strawberry.ID, "The event's id.")
    seq = _row("seq", int, "1, 2, 3 … for each sandbox, in commit order, without holes.")
    cursor: str = strawberry.field(description="Resumes a subscription, or a page, after this event.")
    type = _row("type", SandboxEventType, "What sort of thing happened.")
    source = _row("source", EventSource, "Who it is about.")
    turn = _row("turn", int | None, "The agent's turn in which it happened; null outside of turns.")
    occurred_at = _row("occurred_at", datetime, "When it happened, by the clock of whoever reported it.")
    recorded_at = _row("recorded_at", datetime, "When the server stored it.")
    payload = _row("payload", JSON, "All of the event's data, as reported, without what is known to be secret.")

    @staticmethod
    def resolve_type(entry: Entry, *_: Any) -> str:
        return _TYPE_NAMES.get(entry.row.type, "GenericEvent")


def event(description: str, *types: SandboxEventType) -> Callable[[Kind], Kind]:
    """A type for the events of these types; one for none is for all others."""

    def decorate(kind: Kind) -> Kind:
        _TYPE_NAMES.update(dict.fromkeys(types, kind.__name__))
        kind.is_type_of = staticmethod(  # type: ignore[attr-defined]
            lambda entry, _info: SandboxEvent.resolve_type(entry) == kind.__name__
        )
        return reached(description, shared=True)(kind)

    return decorate


def _status(context: Any, entry: Entry) -> SandboxStatus:
    return SandboxStatus[entry.row.payload["status"]]  # written by the server alone


def _message(context: Any, entry: Entry) -> str | None:
    return reported.line(entry.row.payload, "message")


def _input(context: Any, entry: Entry) -> Any:
    given = entry.row.payload.get("input")
    return {} if given is None else given


def _duration(context: Any, entry: Entry) -> int | None:
    return reported.number(entry.row.payload, "durationMs")


@event("The sandbox has another status.", SandboxEventType.SANDBOX_STATUS)
class SandboxStatusEvent(SandboxEvent):
    status = field(_status, SandboxStatus, "The status from then on.")
    message = field(_message, str | None, "Why, where there is something to say.")


@event("What the agent says or thinks.", SandboxEventType.MESSAGE, SandboxEventType.THINKING)
class MessageEvent(SandboxEvent):
    text = field(resolve.text_of_event, str, "Its words.")


@event("The agent calls a tool.", SandboxEventType.TOOL_USE)
class ToolUseEvent(SandboxEvent):
    tool_use_id = _text("toolUseId", "Joins the call with its end.")
    tool = _text("tool", "The tool's name.")
    input = field(_input, JSON, "What the tool was given.")


@event("A tool has ended.", SandboxEventType.TOOL_COMPLETED)
class ToolCompletedEvent(SandboxEvent):
    tool_use_id = _text("toolUseId", "Joins the call with its end.")
    tool = _text("tool", "The tool's name.")
    is_error = _truth("isError", "Whether it failed.")
    output = field(
        resolve.output_of,
        str,
        "What it gave; a very large one is loaded when this field is asked for.",
        max_chars=Argument(int | None, "Only so many characters of its beginning; all of it when left out."),
    )
    truncated = field(
        resolve.output_is_cut, bool, "Whether `output`, as this answer asks for it, is less than all of it."
    )
    duration_ms = field(_duration, int | None, "How long it took, where that was measured.")


@event("A file is another one than before.", SandboxEventType.FILE_EDITED)
class FileEditedEvent(SandboxEvent):
    change = field(resolve_files.edit_of, FileChange, "What this edit did to the file.")


@event("One of the project's checks begins or ends.", SandboxEventType.CHECK_STARTED, SandboxEventType.CHECK_COMPLETED)
class CheckEvent(SandboxEvent):
    check = field(resolve.check_of, CheckResult | None, "How it ended; null while it runs.")


@event("The try has ended.", SandboxEventType.COMPLETED)
class CompletedEvent(SandboxEvent):
    success = _truth("success", "Whether it ended with a result.")
    summary = field(resolve.summary_of, str, "What came of it, in words.")
    usage = field(resolve.usage_of, Usage, "What the try has cost.")


@event("Any other event.")
class GenericEvent(SandboxEvent):
    text = field(resolve.remark_of, str | None, "Its words, where it has some.")


EVENT_TYPES = [
    SandboxStatusEvent,
    MessageEvent,
    ToolUseEvent,
    ToolCompletedEvent,
    FileEditedEvent,
    CheckEvent,
    CompletedEvent,
    GenericEvent,
]


def _number(context: Any, turn: Any) -> int:
    number: int = turn.turn
    return number


def _started_at(context: Any, turn: Any) -> Any:
    return turn.occurred_at


@reached("One turn of the agent: what it said and did before it was answered.")
class Turn:
    number = field(_number, int, "Its number, as the worker counts.")
    started_at = field(_started_at, datetime, "When it began.")
    finished_at = field(resolve.end_of_turn, datetime | None, "When it ended; null while it may go on.")
    text = field(resolve.words_of_turn, str, "What the agent said in it, sub-agents left out.")
    events = field(resolve.events_of_turn, list[SandboxEvent], "All that happened in it; the first 1,000 at most.")


@reached("Some events of a sandbox, in order.", shared=True)
class SandboxEventsPayload:
    events: list[SandboxEvent] = strawberry.field(description="What is new; empty in the first payload at most.")
    cursor: str = strawberry.field(description="Resumes after this payload.")
    caught_up: bool = strawberry.field(
        description="True from the first payload that reaches the end of what is stored."
    )
    reset: StreamReset | None = strawberry.field(
        description="Set when `after` can no longer be honoured; the client starts again from here."
    )


@reached("Some edits of files, in order.", shared=True)
class SandboxDiffsPayload:
    changes: list[FileChange] = strawberry.field(description="What is new; empty in the first payload at most.")
    seqs: list[int] = strawberry.field(description="For each change the seq of its event.")
    cursor: str = strawberry.field(description="Resumes after this payload.")
    caught_up: bool = strawberry.field(
        description="True from the first payload that reaches the end of what is stored."
    )
    reset: StreamReset | None = strawberry.field(
        description="Set when `after` can no longer be honoured; the client starts again from here."
    )


FOLLOW = {
    "sandbox_id": Argument(strawberry.ID, "The sandbox's id."),
    "after": Argument(str | None, "Go on after this cursor.", strawberry.UNSET),
}


@strawberry.type
class EventSubscription:
    sandbox_events = subscription(
        resolve.follow,
        SandboxEventsPayload,
        "What happens in one sandbox: first what came after `after`, or all of it, then live. Nothing is skipped or "
        "sent twice.",
        rule=auth.viewer("sandbox_id"),
        shared=True,
        types=Argument(list[SandboxEventType] | None, "Only these; the cursor moves on past others.", strawberry.UNSET),
        **FOLLOW,
    )
    sandbox_diffs = subscription(
        resolve.follow_edits,
        SandboxDiffsPayload,
        "Each edit of a file as it happens: first what came after `after`, or all of them, then live.",
        rule=auth.viewer("sandbox_id"),
        shared=True,
        **FOLLOW,
    )
