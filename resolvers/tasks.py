"""Answers about tasks."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from app import ids, paging, reported, tasks, waits
from app.enums import TaskStatus
from app.models import Project, Sandbox, Task, Ticket
from app.transactions import Transaction
from resolvers.context import Context
from resolvers.events import Check, read_check
from resolvers.loaders import TaskList

Given = dict[str, Any]


class Result(NamedTuple):
    """What a worker said at its end, as it was stored."""

    task_id: UUID
    given: Mapping[str, Any]


async def task(context: Context, root: Any, id: str) -> Task:
    found: Task = await context.loaders.tasks.load(_key(id, "id"))
    return found


async def tasks_of_project(context: Context, project: Project, **given: Any) -> paging.Page[Task]:
    return await _page(context, "project", project.id, **given)


async def tasks_of_ticket(context: Context, ticket: Ticket, **given: Any) -> paging.Page[Task]:
    return await _page(context, "ticket", ticket.id, **given)


async def ticket_of(context: Context, task: Task) -> Ticket:
    ticket: Ticket = await context.loaders.tickets.load(task.ticket_id)
    return ticket


async def dependencies_of(context: Context, task: Task) -> Sequence[Task]:
    found: Sequence[Task] = await context.loaders.dependencies.load(task.id)
    return found


async def dependents_of(context: Context, task: Task) -> Sequence[Task]:
    found: Sequence[Task] = await context.loaders.dependents.load(task.id)
    return found


async def waiting_for(context: Context, task: Task) -> Sequence[waits.Reason]:
    found: Sequence[waits.Reason] = await context.loaders.waiting.load(task)
    return found


def failure_of(context: Context, task: Task) -> Task | None:
    """A failure is told by the task's own columns."""
    return task if task.failure_code else None


async def retryable(context: Context, failed: Task | Sandbox) -> bool:
    """Whether the task could be queued again now."""
    if isinstance(failed, Task):
        return TaskStatus.PENDING in tasks.MOVES[failed.status]
    if failed.task_id is None:
        return False
    task: Task = await context.loaders.tasks.load(failed.task_id)
    return TaskStatus.PENDING in tasks.MOVES[task.status]


def result_of(context: Context, task: Task) -> Result | None:
    return Result(task.id, task.result) if task.result is not None else None


def summary_of(context: Context, result: Result) -> str:
    return reported.text(result.given, "summary")


def output_of(context: Context, result: Result) -> Any:
    return result.given.get("output")


def checks_of(context: Context, result: Result) -> Sequence[Check]:
    checks = result.given.get("checks")
    return [read_check(one, result.task_id) for one in checks or () if isinstance(one, dict)]


async def create(tx: Transaction, given: Given) -> Task:
    optional = {
        name: given[name]
        for name in ("phase", "priority", "max_attempts", "deadline_at")
        if given.get(name) is not None
    }
    return await tasks.create(
        tx,
        ids.require(given["ticket_id"], "ticket", "ticketId"),
        title=given["title"],
        description=given.get("description") or "",
        depends_on=_dependencies(given),
        **optional,
    )


async def set_dependencies(tx: Transaction, given: Given) -> Task:
    return await tasks.set_dependencies(tx, _key(given["task_id"]), _dependencies(given))


async def cancel(tx: Transaction, given: Given) -> Task:
    return await tasks.cancel(tx, _key(given["task_id"]), reason=given.get("reason"))


async def retry(tx: Transaction, given: Given) -> Task:
    return await tasks.retry(tx, _key(given["task_id"]), resume=given.get("resume") or False)


async def _page(
    context: Context,
    kind: str,
    parent_id: UUID,
    filter: Mapping[str, Any] | None = None,
    **page: Any,
) -> paging.Page[Task]:
    given = dict(filter or {})
    if given.get("ticket_id") is not None:
        given["ticket_id"] = _ticket_or_nothing(given["ticket_id"])
    frozen: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    wanted = tasks.Filter(**frozen)
    found: paging.Page[Task] = await context.loaders.task_pages.load(
        TaskList(kind, parent_id, wanted, paging.Arguments(**page))
    )
    return found


def _ticket_or_nothing(public_id: str) -> UUID:
    """A filter by an id of nothing finds nothing, whyever it is one."""
    decoded = ids.decode(public_id)
    return decoded[1] if decoded and decoded[0] == "ticket" else UUID(int=0)


def _dependencies(given: Given) -> list[UUID]:
    return [
        ids.require(one, "task", "dependsOn", str(place)) for place, one in enumerate(given.get("depends_on") or ())
    ]


def _key(public_id: str, name: str = "taskId") -> UUID:
    return ids.require(public_id, "task", name)
