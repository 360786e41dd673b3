"""Answers about sandboxes."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from app import attempts, ids, paging, projects, sandboxes, tasks
from app.auth import Principal
from app.enums import PrincipalKind
from app.errors import BadUserInput
from app.models import Project, Sandbox, Task
from app.projects import Resources
from app.transactions import Transaction
from resolvers.context import Context, Services
from resolvers.loaders import SandboxList
from resolvers.streams import stream_of

Given = dict[str, Any]
MOST_LINES = 10_000
NOTHING = UUID(int=0)


class BootStep(NamedTuple):
    name: str
    started_at: datetime
    finished_at: datetime | None
    error: str | None


async def sandbox(context: Context, root: Any, id: str) -> Sandbox:
    found: Sandbox = await context.loaders.sandboxes.load(_key(id, "id"))
    return found


async def sandboxes_of_viewer(
    context: Context, root: Any, filter: Mapping[str, Any] | None = None, **page: Any
) -> paging.Page[Sandbox]:
    principal, db, wanted = context.principal, context.services.db, _wanted(filter)

    async def count() -> int:
        async with db.reading() as session:
            return await sandboxes.count_visible(session, principal, wanted)

    async with db.reading() as session:
        query = sandboxes.visible(principal, wanted)
        cursors = paging.Sealed(f"sandboxes of {principal.id}")
        arguments = paging.Arguments(**page)
        return await paging.page(session, query, sandboxes.NEWEST_FIRST, arguments, cursors=cursors, count=count)


async def sandboxes_of_project(
    context: Context, project: Project, filter: Mapping[str, Any] | None = None, **page: Any
) -> paging.Page[Sandbox]:
    return await _page(context, "project", project.id, _wanted(filter), page)


async def sandboxes_of_task(context: Context, task: Task, **page: Any) -> paging.Page[Sandbox]:
    return await _page(context, "task", task.id, sandboxes.Filter(), page)


async def sandbox_of_task(context: Context, task: Task) -> Sandbox | None:
    found: Sandbox | None = await context.loaders.live_sandboxes.load(task.id)
    return found


async def sandbox_of_viewer(context: Context, principal: Principal) -> Sandbox | None:
    if principal.kind is not PrincipalKind.SANDBOX:
        return None
    found: Sandbox = await context.loaders.sandboxes.load(principal.id)
    return found


async def task_of(context: Context, sandbox: Sandbox) -> Task | None:
    if sandbox.task_id is None:
        return None
    task: Task = await context.loaders.tasks.load(sandbox.task_id)
    return task


def boot_of(context: Context, sandbox: Sandbox) -> Sequence[BootStep]:
    return [
        BootStep(step["name"], datetime.fromisoformat(step["startedAt"]), _moment(step["finishedAt"]), step["error"])
        for step in sandbox.boot
    ]


def resources_of(context: Context, sandbox: Sandbox) -> Resources:
    return projects.Resources(**sandbox.resources)


def failure_of(context: Context, sandbox: Sandbox) -> Sandbox | None:
    """A failure is told by the sandbox's own columns."""
    return sandbox if sandbox.failure_code else None


def itself(context: Context, sandbox: Sandbox) -> Sandbox:
    """What the sandbox's own columns tell under a heading."""
    return sandbox


async def last_seq_of(context: Context, sandbox: Sandbox) -> int:
    return (await stream_of(context, sandbox)).last_seq


async def log_of(context: Context, sandbox: Sandbox, lines: int | None) -> str:
    """From its machine while there is one, and as it was kept once that is gone; without what is known to be secret."""
    most = lines if lines is not None else MOST_LINES
    if not 1 <= most <= MOST_LINES:
        raise BadUserInput(f"`lines` must be between 1 and {MOST_LINES:,}.", path=["lines"])
    services = context.services
    if sandbox.gone_at is None:
        text = await services.read_log(sandbox, most)
    else:
        text = await context.loaders.histories.logs.load(sandbox.id)
    async with services.db.reading() as session:
        mask = await services.masks.of(session, sandbox.id)
    return mask.text("".join(text.splitlines(keepends=True)[-most:]))


async def spawn(tx: Transaction, given: Given, *, services: Services) -> Sandbox:
    task_id = ids.require(given["task_id"], "task", "taskId")
    await projects.hold(tx.session, await tasks.project_of(tx.session, task_id))
    return await attempts.spawn(tx, task_id, services.fleet)


async def stop(tx: Transaction, given: Given) -> Sandbox:
    return await attempts.stop(tx, _key(given["sandbox_id"]), reason=given.get("reason"))


async def _page(
    context: Context, kind: str, parent_id: UUID, wanted: sandboxes.Filter, page: Mapping[str, Any]
) -> paging.Page[Sandbox]:
    found: paging.Page[Sandbox] = await context.loaders.sandbox_pages.load(
        SandboxList(kind, parent_id, wanted, paging.Arguments(**page))
    )
    return found


def _wanted(filter: Mapping[str, Any] | None) -> sandboxes.Filter:
    given = dict(filter or {})
    for name in ("project", "task"):
        if given.get(f"{name}_id") is not None:
            given[f"{name}_id"] = _or_nothing(given[f"{name}_id"], name)
    if given.get("statuses") is not None:
        given["statuses"] = tuple(given["statuses"])
    return sandboxes.Filter(**given)


def _or_nothing(public_id: str, prefix: str) -> UUID:
    """A filter by an id of nothing finds nothing, whyever it is one."""
    decoded = ids.decode(public_id)
    return decoded[1] if decoded and decoded[0] == prefix else NOTHING


def _moment(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def _key(public_id: str, name: str = "sandboxId") -> UUID:
    return ids.require(public_id, "sandbox", name)
