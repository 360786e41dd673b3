"""A project's feed as clients see it, in pages and live."""

from datetime import datetime
from typing import Any

import strawberry

from app import auth, enums, ids, streams
from resolvers import activity as resolve
from resolvers.activity import Entry
from schema.fields import Argument, field, subscription
from schema.nodes import Node
from schema.rules import SHARED, reached
from schema.users import AuthorKind


def _id(context: Any, entry: Entry) -> str:
    return ids.encode("activity", entry.row.id)


def _seq(context: Any, entry: Entry) -> int:
    return entry.row.seq


def _verb(context: Any, entry: Entry) -> str:
    return entry.row.verb


def _summary(context: Any, entry: Entry) -> str:
    return entry.row.summary


def _actor(context: Any, entry: Entry) -> str:
    return entry.row.actor


def _actor_kind(context: Any, entry: Entry) -> enums.PrincipalKind:
    return entry.row.actor_kind


def _occurred_at(context: Any, entry: Entry) -> Any:
    return entry.row.occurred_at


@reached("One entry of a project's feed: lifecycle of its tickets, tasks, specs and sandboxes.")
class Activity:
    id = field(_id, strawberry.ID, "The entry's id.", shared=True)
    seq = field(_seq, int, "1, 2, 3 … for each project, in commit order, without holes.", shared=True)
    cursor: str = strawberry.field(
        description="Resumes a subscription, or a page, after this entry.", directives=SHARED
    )
    verb = field(_verb, str, "What happened, e.g. `ticket.created`. New verbs may be added.", shared=True)
    summary = field(_summary, str, "The same as a phrase that follows the actor's name.", shared=True)
    actor = field(_actor, str, "Who did it.", shared=True)
    actor_kind = field(_actor_kind, AuthorKind, "What sort of actor that is.", shared=True)
    subject = field(
        resolve.subject_of, Node | None, "The object as it is now, so that a client's cache updates by itself."
    )
    occurred_at = field(_occurred_at, datetime, "When it happened.", shared=True)


@reached("The cursor could not be honoured; the client starts again from here.", shared=True)
class StreamReset:
    reason: str = strawberry.field(description="Why, in a sentence.")
    first_available_seq: int = strawberry.field(description="The first entry that is still kept.")


def _cursor(context: Any, stream: Any) -> str:
    return str(streams.Cursor(stream.epoch, stream.last_seq))


@reached("Lets a client prove that it has missed nothing, had nothing twice and everything in order.")
class StreamDigest:
    epoch: str = strawberry.field(description="Changes when the stream is not the same any more.")
    count = field(lambda _, stream: stream.last_seq - stream.first_seq + 1, int, "How many entries are kept of it.")
    last_seq: int = strawberry.field(description="The newest entry's seq.")
    cursor = field(_cursor, str, "Begins a subscription, or a page, right after that entry.")
    sha256 = field(
        lambda _, stream: stream.digest.hex(),
        str,
        "In hex: SHA-256 of the 32 bytes of this hash before the newest entry, followed by that entry's `id` in UTF-8; "
        "before the first entry they are zeros. Whoever begins at `cursor` goes on from here.",
    )


@reached("Some entries of a project's feed, in order.", shared=True)
class ProjectActivityPayload:
    activities: list[Activity] = strawberry.field(description="What is new; empty in the first payload at most.")
    cursor: str = strawberry.field(description="Resumes after this payload.")
    caught_up: bool = strawberry.field(
        description="True from the first payload that reaches the end of what is stored."
    )
    reset: StreamReset | None = strawberry.field(
        description="Set when `after` can no longer be honoured; the client starts again from here."
    )


@strawberry.type
class ActivitySubscription:
    project_activity = subscription(
        resolve.follow,
        ProjectActivityPayload,
        "A project's feed, with each changed object: first what came after `after`, or all of it, then live.",
        rule=auth.viewer("project_id"),
        shared=True,
        project_id=Argument(strawberry.ID, "The project's id."),
        after=Argument(str | None, "Go on after this cursor.", strawberry.UNSET),
    )
