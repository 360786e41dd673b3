"""Tasks as clients see them."""

from datetime import datetime
from typing import Any

import strawberry

from app import auth, models, tasks
from app.enums import FailureCode, Priority, TaskPhase, TaskStatus, WaitCode
from resolvers import tasks as resolve
from resolvers import tickets as resolve_tickets
from schema.fields import Argument, described, field, later, many, mutation, query
from schema.nodes import ID, Node, node, public_id
from schema.payloads import ERRORS, UserError
from schema.rules import reached

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


def _code(context: Any, task: models.Task) -> Any:
    return task.failure_code


def _message(context: Any, task: models.Task) -> str:
    return task.failure_message or ""


def _retryable(context: Any, task: models.Task) -> bool:
    return TaskStatus.PENDING in tasks.MOVES[task.status]


@reached("Why something ended without a result.")
class Failure:
    code = field(_code, FailureCode, "What sort of end it was.")
    message = field(_message, str, "A sentence for people.")
    retryable = field(_retryable, bool, "Whether `retryTask` would start it again.")


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
    failure = field(resolve.failure_of, Failure | None, "Why it ended without a result; null unless it did.")
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
