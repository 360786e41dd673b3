"""Sandboxes as clients see them."""

from datetime import datetime

import strawberry

from app import auth, models
from app.enums import EventSource, SandboxEventType, SandboxStatus
from resolvers import events as resolve_events
from resolvers import files as resolve_files
from resolvers import messages as resolve_messages
from resolvers import sandboxes as resolve
from resolvers import streams as resolve_streams
from resolvers import tickets as resolve_tickets
from resolvers import usage as resolve_usage
from schema.activity import StreamDigest
from schema.events import SandboxEvent, Turn
from schema.fields import Argument, field, later, mutation, query
from schema.files import FileChange, Transcript
from schema.messages import Message
from schema.nodes import ID, Node, node, public_id
from schema.paging import PAGE, Connection, connection
from schema.payloads import ERRORS, UserError
from schema.rules import reached
from schema.tasks import Failure
from schema.usage import Usage


@reached("A step of a sandbox's start.")
class BootStep:
    name: str = strawberry.field(description="Which step.")
    started_at: datetime = strawberry.field(description="When it began.")
    finished_at: datetime | None = strawberry.field(description="When it ended; null while it goes on.")
    error: str | None = strawberry.field(description="Why it failed; null when it did not.")


@reached("The signs of life of a worker, folded.")
class HeartbeatSummary:
    count = field(lambda _, sandbox: sandbox.heartbeats, int, "How many there were.")
    first_at = field(lambda _, sandbox: sandbox.first_heartbeat_at, datetime | None, "When the first one came.")
    last_at = field(lambda _, sandbox: sandbox.last_heartbeat_at, datetime | None, "When the last one came.")
    longest_gap_ms: int = strawberry.field(description="The longest silence between two of them.")


@node(models.Sandbox, "One try at a task, in one isolated machine.")
class Sandbox(Node):
    id = public_id("sandbox")
    name: str = strawberry.field(description="The name the provider knows it by.")
    provider: str = strawberry.field(description="Where its machine is.")
    provider_id: str | None = strawberry.field(description="What the provider calls its machine.")
    project = field(
        resolve_tickets.project_of,
        later("Project", "schema.projects"),
        "The project it works for.",
        rule=auth.SIGNED_IN,
    )
    task = field(resolve.task_of, later("Task", "schema.tasks") | None, "The task it is a try at.", rule=auth.SIGNED_IN)
    attempt: int = strawberry.field(description="Which try it is: 1, 2, 3 …")
    status: SandboxStatus = strawberry.field(description="Where it stands.")
    boot = field(
        resolve.boot_of,
        list[BootStep],
        "The steps of its start with their times, so that a slow or failed one says why.",
    )
    resources = field(resolve.resources_of, later("SandboxResources", "schema.projects"), "The machine that it has.")
    branch: str | None = strawberry.field(description="The branch that it works on.")
    failure = field(resolve.failure_of, Failure | None, "Why it ended without a result; null unless it did.")
    last_heartbeat_at: datetime | None = strawberry.field(description="When its worker was last heard of.")
    heartbeats = field(resolve.itself, HeartbeatSummary, "The signs of life of its worker.")
    last_seq = field(resolve.last_seq_of, int, "The newest event's seq.")
    events = connection(
        resolve_events.events_of,
        SandboxEvent,
        "What happened in it, the oldest first.",
        types=Argument(list[SandboxEventType] | None, "Only these.", strawberry.UNSET),
        sources=Argument(list[EventSource] | None, "Only about these.", strawberry.UNSET),
    )
    event = field(resolve_events.event_of, SandboxEvent | None, "One event.", seq=Argument(int, "Its seq."))
    events_around = field(
        resolve_events.events_around,
        list[SandboxEvent],
        "A page with that event in its middle, to open a long history at a link.",
        seq=Argument(int, "The event's seq."),
        count=Argument(int | None, "How many, 1 to 100.", 50),
    )
    trajectory = connection(
        resolve_events.trajectory_of, Turn, "What happened, told turn by turn. What has no turn is in `events`."
    )
    changes = field(
        resolve_files.changes_of,
        list[FileChange],
        "Net change of every file it has touched, from the branch's base until now.",
        at=Argument(int | None, "At that event instead of now: what a time scrubber shows.", strawberry.UNSET),
    )
    messages = connection(resolve_messages.messages_of, Message, "What was said to its agent, the oldest first.")
    transcript = field(
        resolve_files.transcript_of, Transcript | None, "The agent's own record of its session, once it was kept."
    )
    log = field(
        resolve.log_of,
        str,
        "The worker's own output, without what is known to be secret.",
        lines=Argument(int | None, "So many of its last lines, 1 to 10,000.", 200),
    )
    usage = field(resolve_usage.of_sandbox, Usage, "What it has cost so far.")
    digest = field(resolve_streams.stream_of, StreamDigest, "Lets a client prove that it has missed nothing.")
    created_at: datetime = strawberry.field(description="When it was asked for.")
    started_at: datetime | None = strawberry.field(description="When its worker was first heard of.")
    finished_at: datetime | None = strawberry.field(description="When it ended.")


@strawberry.input(description="Which sandboxes; what is left out does not narrow.")
class SandboxFilter:
    project_id: strawberry.ID | None = strawberry.field(default=strawberry.UNSET, description="Of this project.")
    task_id: strawberry.ID | None = strawberry.field(default=strawberry.UNSET, description="Of this task.")
    statuses: list[SandboxStatus] | None = strawberry.field(default=strawberry.UNSET, description="Any of these.")
    active: bool | None = strawberry.field(
        default=strawberry.UNSET, description="True: those that have not ended; false: those that have."
    )


SANDBOX_FILTER = {"filter": Argument(SandboxFilter | None, "Which of them.", strawberry.UNSET)}


@strawberry.input(description="Which task to start.")
class SpawnSandboxInput:
    task_id: strawberry.ID = strawberry.field(description="The task's id.")
    idempotency_key: str | None = strawberry.field(
        default=strawberry.UNSET, description="The same key with the same input starts it once."
    )


@strawberry.input(description="Which sandbox to stop.")
class StopSandboxInput:
    sandbox_id: strawberry.ID = strawberry.field(description="The sandbox's id.")
    reason: str | None = strawberry.field(default=strawberry.UNSET, description="Why, for those who read it later.")


@reached("The sandbox.")
class SandboxPayload:
    sandbox: Sandbox | None = strawberry.field(default=None, description="The sandbox, unless there are errors.")
    errors: list[UserError] = strawberry.field(default_factory=list, description=ERRORS)


@strawberry.type
class SandboxQuery:
    sandbox = query(resolve.sandbox, Sandbox | None, "A sandbox by its id.", rule=auth.viewer("id"), **ID)
    sandboxes = query(
        resolve.sandboxes_of_viewer,
        Connection[Sandbox],
        "The sandboxes of all projects that the caller belongs to, the newest first.",
        rule=auth.SIGNED_IN,
        **SANDBOX_FILTER,
        **PAGE,
    )


@strawberry.type
class SandboxMutation:
    spawn_sandbox = mutation(
        resolve.spawn,
        SandboxPayload,
        "Start a task now, ahead of the queue, if nothing but its place in the queue holds it back.",
        takes=SpawnSandboxInput,
        rule=auth.member("task_id"),
        answers="sandbox",
        served=True,
    )
    stop_sandbox = mutation(
        resolve.stop,
        SandboxPayload,
        "End this try now, and with it the task, which can be retried.",
        takes=StopSandboxInput,
        rule=auth.member("sandbox_id"),
        answers="sandbox",
    )
