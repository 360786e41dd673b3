"""Tasks as clients see them."""

from datetime import datetime
from typing import Any

import strawberry

from app import auth, models, reported
from app.enums import FailureCode, Priority, TaskPhase, TaskStatus, WaitCode
from resolvers import events as resolve_events
from resolvers import sandboxes as resolve_sandboxes
from resolvers import tasks as resolve
from resolvers import tickets as resolve_tickets
from resolvers import usage as resolve_usage
from schema.fields import Argument, described, field, later, many, mutation, query
from schema.nodes import ID, Node, node, public_id
from schema.paging import connection
from schema.payloads import ERRORS, UserError
from schema.rules import reached
from schema.scalars import JSON
from schema.usage import Usage

described(Priority, "How soon something is wanted.")
described(TaskPhase, "What sort of step a task is.")
described(TaskStatus, "PENDING → ASSIGNED → RUNNING → COMPLETED, FAILED or CANCELLED; a retry goes back to PENDING.")
described(WaitCode, "What holds a task back.")
described(FailureCode, "How something ended without a result.")


@reached("One thing that holds a task back.")
class WaitReason:
    code: WaitCode = strawberry.field(description="What sort of thing.")
    message: str = strawberry.field(description="A sentence, with what would clear it.")
    blocker: Node | None = strawberry.field(description="The object that is in the way, where there is one.")
    until: datetime | None = strawberry.field(description="When it clears by itself, where that is known.")


def _code(context: Any, failed: models.Task | models.Sandbox) -> Any:
    return failed.failure_code


def _message(context: Any, failed: models.Task | models.Sandbox) -> str:
    return failed.failure_message or ""


def _said(name: str) -> Any:
    return lambda _, result: reported.line(result.given, name)


@reached("Why something ended without a result.")
class Failure:
    code = field(_code, FailureCode, "What sort of end it was.")
    message = field(_message, str, "A sentence for people.")
    retryable = field(resolve.retryable, bool, "Whether `retryTask` would start it again.")


@reached("One run of a project's check.", shared=True)
class CheckResult:
    command: str = strawberry.field(description="What was run.")
    passed: bool = strawberry.field(description="Whether it passed.")
    output = field(resolve_events.output_of_check, str, "What it printed.")
    duration_ms: int = strawberry.field(description="How long it took.")


@reached("What came of a task.")
class TaskResult:
    summary = field(resolve.summary_of, str, "In words.")
    output = field(resolve.output_of, JSON | None, "As data, where there is some.")
    branch = field(_said("branch"), str | None, "The branch that was pushed.")
    commit = field(_said("commit"), str | None, "Its newest commit.")
    checks = field(resolve.checks_of, list[CheckResult], "How the project's checks ended, the last time they ran.")


@node(models.Task, "The wish; each try at it is a sandbox.")
class Task(Node):
    id = public_id("task")
    ticket = field(resolve.ticket_of, later("Ticket", "schema.tickets"), "The ticket it helps to finish.")
    project = field(resolve_tickets.project_of, later("Project", "schema.projects"), "The project it belongs to.")
    title: str = strawberry.field(description="What shall be done, in one line.")
    description: str = strawberry.field(description="What shall be done, in full.")
    phase: TaskPhase = strawberry.field(description="What sort of step it is.")
    status: TaskStatus = strawberry.field(description="Where it stands.")
    priority: Priority = strawberry.field(description="How soon it is wanted.")
    depends_on = field(
        resolve.dependencies_of, many(later("Task", "schema.tasks")), "Tasks that must be completed before it starts."
    )
    dependents = field(resolve.dependents_of, many(later("Task", "schema.tasks")), "Tasks that wait for this one.")
    waiting_for = field(
        resolve.waiting_for, list[WaitReason], "Why it is not running now: empty while it runs or once it has ended."
    )
    attempt: int = strawberry.field(description="Tries so far; 0 before the first.")
    max_attempts: int = strawberry.field(description="Tries that it gets.")
    sandbox = field(
        resolve_sandboxes.sandbox_of_task, later("Sandbox", "schema.sandboxes") | None, "The one that works on it now."
    )
    sandboxes = connection(
        resolve_sandboxes.sandboxes_of_task, later("Sandbox", "schema.sandboxes"), "Each try at it, the newest first."
    )
    result = field(resolve.result_of, TaskResult | None, "What came of it; null unless it is completed.")
    failure = field(resolve.failure_of, Failure | None, "Why it ended without a result; null unless it did.")
    usage = field(resolve_usage.of_task, Usage, "What work on it has cost.")
    deadline_at: datetime | None = strawberry.field(description="When it should be done, where somebody said so.")
    created_at: datetime = strawberry.field(description="When it was queued first.")
    assigned_at: datetime | None = strawberry.field(description="When its current try got a sandbox.")
    started_at: datetime | None = strawberry.field(description="When its current try began to work.")
    finished_at: datetime | None = strawberry.field(description="When it ended.")


@strawberry.input(description="Which tasks; what is left out does not narrow.")
class TaskFilter:
    statuses: list[TaskStatus] | None = strawberry.field(default=strawberry.UNSET, description="Any of these.")
    phases: list[TaskPhase] | None = strawberry.field(default=strawberry.UNSET, description="Any of these.")
    ticket_id: strawberry.ID | None = strawberry.field(default=strawberry.UNSET, description="Of this ticket.")


TASK_FILTER = {"filter": Argument(TaskFilter | None, "Which of them.", strawberry.UNSET)}


@strawberry.input(description="A new task of a ticket, queued at once.")
class CreateTaskInput:
    ticket_id: strawberry.ID = strawberry.field(description="The ticket's id.")
    title: str = strawberry.field(description="What shall be done, in one line of 200 characters at most.")
    description: str | None = strawberry.field(default="", description="What shall be done, in full.")
    phase: TaskPhase | None = strawberry.field(default=TaskPhase.IMPLEMENTATION, description="What sort of step it is.")
    priority: Priority | None = strawberry.field(
        default=strawberry.UNSET, description="How soon it is wanted; the ticket's own when left out."
    )
    depends_on: list[strawberry.ID] | None = strawberry.field(
        default=strawberry.UNSET, description="Tasks that must be completed before it starts."
    )
    max_attempts: int | None = strawberry.field(
        default=strawberry.UNSET, description="Tries that it gets, 1 to 20; the project's setting when left out."
    )
    deadline_at: datetime | None = strawberry.field(
        default=strawberry.UNSET, description="When it should be done: an hour before that it comes before all others."
    )
    idempotency_key: str | None = strawberry.field(
        default=strawberry.UNSET, description="The same key with the same input makes one task."
    )


@strawberry.input(description="What a task waits for: exactly these.")
class SetTaskDependenciesInput:
    task_id: strawberry.ID = strawberry.field(description="The task's id.")
    depends_on: list[strawberry.ID] = strawberry.field(description="Tasks that must be completed; empty for none.")


@strawberry.input(description="Which task to cancel.")
class CancelTaskInput:
    task_id: strawberry.ID = strawberry.field(description="The task's id.")
    reason: str | None = strawberry.field(default=strawberry.UNSET, description="Why, for those who read it later.")


@strawberry.input(description="Which task to queue again.")
class RetryTaskInput:
    task_id: strawberry.ID = strawberry.field(description="The task's id.")
    resume: bool | None = strawberry.field(
        default=False, description="Go on with the agent's session and its files as far as they were recorded."
    )
    idempotency_key: str | None = strawberry.field(
        default=strawberry.UNSET, description="The same key with the same input retries once."
    )


@reached("The task.")
class TaskPayload:
    task: Task | None = strawberry.field(default=None, description="The task, unless there are errors.")
    errors: list[UserError] = strawberry.field(default_factory=list, description=ERRORS)


@strawberry.type
class TaskQuery:
    task = query(resolve.task, Task | None, "A task by its id.", rule=auth.viewer("id"), **ID)


@strawberry.type
class TaskMutation:
    create_task = mutation(
        resolve.create,
        TaskPayload,
        "Queue a piece of work for a ticket.",
        takes=CreateTaskInput,
        rule=auth.member("ticket_id"),
        answers="task",
    )
    set_task_dependencies = mutation(
        resolve.set_dependencies,
        TaskPayload,
        "Let a pending task wait for exactly these.",
        takes=SetTaskDependenciesInput,
        rule=auth.member("task_id"),
        answers="task",
    )
    cancel_task = mutation(
        resolve.cancel,
        TaskPayload,
        "End it now. A task that has ended stays as it ended.",
        takes=CancelTaskInput,
        rule=auth.member("task_id"),
        answers="task",
    )
    retry_task = mutation(
        resolve.retry,
        TaskPayload,
        "Queue a failed or cancelled task again.",
        takes=RetryTaskInput,
        rule=auth.member("task_id"),
        answers="task",
    )
