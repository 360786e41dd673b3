"""What the worker in a sandbox asks of the server, with that sandbox's token only."""

from datetime import datetime

import strawberry

from app import auth
from app.enums import DesiredState, EventSource, FailureCode, GitOperation, SandboxEventType
from resolvers import worker as resolve
from schema.fields import described, field, mutation, plain, subscription
from schema.messages import Message
from schema.payloads import ERRORS, UserError
from schema.rules import reached
from schema.scalars import JSON

described(DesiredState, "What a worker shall do.")
described(GitOperation, "What a git credential is for.")


@plain
@strawberry.input(description="One event, as a worker reports it.")
class ReportedEvent:
    producer_seq: int = strawberry.field(
        description="1, 2, 3 … within one sandbox; sending the same again is harmless."
    )
    type: SandboxEventType = strawberry.field(description="What sort of thing happened.")
    source: EventSource | None = strawberry.field(default=EventSource.AGENT, description="AGENT or WORKER.")
    turn: int | None = strawberry.field(default=strawberry.UNSET, description="The agent's turn; null outside of one.")
    occurred_at: datetime = strawberry.field(description="When it happened.")
    payload: JSON = strawberry.field(
        description="An object of 256 KiB at most; text that is too large for it is uploaded first "
        '(PUT /blobs/{sha256}) and named {"blob": "<sha256>"} in its place.'
    )


@strawberry.input(description="What happened since the last report; nothing is a sign of life.")
class ReportEventsInput:
    events: list[ReportedEvent] = strawberry.field(description="In the order of their numbers, 500 at most.")
    heartbeat: bool | None = strawberry.field(default=True, description="Whether this counts as a sign of life.")


@strawberry.input(description="Which messages the agent was shown.")
class AcknowledgeMessagesInput:
    message_ids: list[strawberry.ID] = strawberry.field(description="The messages' ids, 200 at most.")
    delivered_in_turn: int | None = strawberry.field(
        default=strawberry.UNSET, description="The turn in which it was shown them."
    )


@strawberry.input(description="One run of a project's check.")
class CheckResultInput:
    command: str = strawberry.field(description="What was run.")
    passed: bool = strawberry.field(description="Whether it passed.")
    output: str = strawberry.field(description="What it printed.")
    duration_ms: int = strawberry.field(description="How long it took.")


@strawberry.input(description="How a try has ended.")
class FinishSandboxInput:
    success: bool = strawberry.field(description="Whether there is a result.")
    summary: str = strawberry.field(description="What came of it, in words.")
    output: JSON | None = strawberry.field(default=strawberry.UNSET, description="What came of it, as data.")
    branch: str | None = strawberry.field(default=strawberry.UNSET, description="The branch that was pushed.")
    commit: str | None = strawberry.field(default=strawberry.UNSET, description="Its newest commit.")
    checks: list[CheckResultInput] | None = strawberry.field(
        default=strawberry.UNSET, description="How the project's checks ended."
    )
    failure_code: FailureCode | None = strawberry.field(
        default=strawberry.UNSET, description="Without a result: what sort of end it was."
    )
    session_id: str | None = strawberry.field(default=strawberry.UNSET, description="The agent's session.")
    transcript_blob: str | None = strawberry.field(
        default=strawberry.UNSET, description="The SHA-256 under which its transcript was uploaded."
    )


@strawberry.input(description="What a credential is needed for.")
class IssueGitCredentialInput:
    operation: GitOperation = strawberry.field(description="What it is for.")


DESIRED = "What the worker shall do from now on."


@reached("What the worker should know now.")
class WorkerPayload:
    desired: strawberry.Private[DesiredState | None] = None
    desired_state = field(resolve.desired_state, DesiredState, DESIRED)
    errors: list[UserError] = strawberry.field(default_factory=list, description=ERRORS)


@reached("How far the server has taken what was reported, and what the worker should know now.")
class ReportEventsPayload:
    accepted: strawberry.Private[int | None] = None
    desired: strawberry.Private[DesiredState | None] = None
    accepted_through = field(
        resolve.accepted_through,
        int,
        "Every event up to and including this producerSeq was taken: it is stored, or `errors` says that it is left "
        "out for good. The next follows it.",
    )
    desired_state = field(resolve.desired_state, DesiredState, DESIRED)
    pending_messages: list[Message] = strawberry.field(
        default_factory=list, description="What the agent was not shown yet; the same ones come until acknowledged."
    )
    errors: list[UserError] = strawberry.field(
        default_factory=list, description="What was not taken, and why; empty when everything was."
    )


@reached("What opens the sandbox's repository; a null username: nothing is needed, or known.")
class GitCredentialPayload:
    username: str | None = strawberry.field(default=None, description="The name.")
    password: str | None = strawberry.field(default=None, description="The password.")
    expires_at: datetime | None = strawberry.field(default=None, description="From when on it is refused.")
    errors: list[UserError] = strawberry.field(default_factory=list, description=ERRORS)


@reached("What the worker should look at now.")
class WorkerInboxPayload:
    messages: list[Message] = strawberry.field(description="What is new.")
    desired_state: DesiredState = strawberry.field(description=DESIRED)


@strawberry.type
class WorkerMutation:
    report_events = mutation(
        resolve.report,
        ReportEventsPayload,
        "What happened in the sandbox. Also its sign of life.",
        takes=ReportEventsInput,
        rule=auth.WORKER,
        answers="accepted",
        raw=True,
        served=True,
    )
    acknowledge_messages = mutation(
        resolve.acknowledge,
        WorkerPayload,
        "The agent was shown these messages. Said again it is harmless.",
        takes=AcknowledgeMessagesInput,
        rule=auth.WORKER,
        answers="desired",
    )
    finish_sandbox = mutation(
        resolve.finish,
        WorkerPayload,
        "The worker's last word. Said again it is harmless.",
        takes=FinishSandboxInput,
        rule=auth.WORKER,
        answers="desired",
        raw=True,
        served=True,
    )
    issue_git_credential = mutation(
        resolve.issue_git_credential,
        GitCredentialPayload,
        "What opens the sandbox's own repository for one operation.",
        takes=IssueGitCredentialInput,
        rule=auth.WORKER,
        answers="username",
        served=True,
    )


@strawberry.type
class WorkerSubscription:
    worker_inbox = subscription(
        resolve.inbox,
        WorkerInboxPayload,
        "Messages the moment they are sent, and the wish to stop; first what waits.",
        rule=auth.WORKER,
    )
