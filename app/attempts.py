"""An attempt is a task and its sandbox together: claimed, begun, and ended once, by whoever comes first."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from app import clock, credentials, long_texts, machines, projects, sandboxes, tasks, tickets, waits
from app.enums import CredentialKind, DesiredState, FailureCode, SandboxEventType, SandboxStatus, TaskStatus
from app.errors import Conflict, InvalidInput, SandboxNotRunning
from app.inputs import LINE_CHARS, Checks
from app.models import Project, Sandbox, Task, Ticket
from app.projects import ProjectSettings
from app.transactions import Transaction

CLAIMS = 50  # in one transaction
SESSION_CHARS = 100
REASON_CHARS = 4_000  # of why it failed; the event of its end has all that the worker said


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Where sandboxes run, and how many of them at once."""

    provider: str
    machines: int
    deployment: str
    life: timedelta
    place: str | None = None  # the one of the provider's places that this server sees to; None: all of them


@dataclass(frozen=True, slots=True, kw_only=True)
class Briefing:
    """All that the start of a sandbox is made from."""

    sandbox: Sandbox
    task: Task
    ticket: Ticket
    project: Project
    settings: ProjectSettings
    user_id: UUID  # with whose credentials it works
    real_model: bool
    earlier: Sandbox | None  # the try that it goes on from


async def claim(tx: Transaction, fleet: Fleet, *, only: UUID | None = None) -> Sequence[Sandbox]:
    """Give the next tasks to sandboxes that are to be launched: the rows first, the machines later."""
    claimed = await tasks.claim(
        tx.session, provider=fleet.provider, place=fleet.place, machines=fleet.machines, most=CLAIMS, only=only
    )
    if not claimed:
        return []
    made = await sandboxes.insert_for(
        tx.session, claimed, provider=fleet.provider, deployment=fleet.deployment, life=fleet.life
    )
    await tickets.begin(tx, {task.ticket_id for task in claimed})
    for task, sandbox in zip(claimed, made, strict=True):
        what = f"gave {task.title} to {sandbox.name}, attempt {task.attempt}"
        tx.record("task.assigned", task.id, what[:LINE_CHARS], project_id=task.project_id)
        status = {"status": SandboxStatus.PROVISIONING.name, "message": None}
        tx.emit(sandbox.id, SandboxEventType.SANDBOX_STATUS, status)
    tx.ring(sandboxes.LAUNCH_TOPIC)
    return made


async def spawn(tx: Transaction, task_id: UUID, fleet: Fleet) -> Sandbox:
    """Start this task now, if nothing but its place in the queue holds it back."""
    working = (await sandboxes.live_of(tx.session, [task_id])).get(task_id)
    if working is not None:
        return working
    made = await claim(tx, fleet, only=task_id)
    if made:
        return made[0]
    [task] = await tasks.by_ids(tx.session, [task_id])
    if task.status is not TaskStatus.PENDING:
        raise Conflict(f"The task is {task.status.name}; only a PENDING task can be started.", path=["taskId"])
    reasons = (await waits.waiting_for(tx.session, [task], orchestrated=True, room=fleet))[task_id]
    why = " ".join(reason.message for reason in reasons) or "Somebody changes it in this moment. Try again."
    raise Conflict(why, path=["taskId"])


async def brief(tx: Transaction, sandbox_id: UUID, *, server_has_key: bool, exposed: bool) -> Briefing:
    """Settle what is decided at its launch, its branch, its resources and its walls, and collect what it shall know."""
    sandbox = await _lock(tx.session, sandbox_id)
    assert sandbox.task_id is not None
    [task] = await tasks.by_ids(tx.session, [sandbox.task_id])
    [project] = await projects.by_ids(tx.session, [task.project_id])
    await tickets.begin(tx, [task.ticket_id])  # in case somebody held it when the task was claimed
    ticket = await tickets.with_branch(tx.session, task.ticket_id, project)
    settings = ProjectSettings.stored(project.settings)
    sandbox = await sandboxes.equip(
        tx.session, sandbox_id, branch=ticket.branch, resources=asdict(settings.resources), exposed=exposed
    )
    user_id = task.created_by or project.created_by
    own_key = await credentials.has(tx.session, user_id, CredentialKind.ANTHROPIC)
    earlier = await sandboxes.last_of(tx.session, task.id, before_attempt=sandbox.attempt) if task.resume else None
    return Briefing(
        sandbox=sandbox,
        task=task,
        ticket=ticket,
        project=project,
        settings=settings,
        user_id=user_id,
        real_model=own_key or server_has_key,
        earlier=earlier,
    )


async def begin(tx: Transaction, sandbox_id: UUID) -> None:
    """The worker's first sign of life: the sandbox runs, and so does its task."""
    sandbox = await sandboxes.lock(tx.session, sandbox_id)
    running = await sandboxes.move(
        tx,
        sandbox_id,
        SandboxStatus.RUNNING,
        only_from=frozenset({SandboxStatus.PROVISIONING, SandboxStatus.STARTING}),
        started_at=clock.now(),
    )
    if running is not None and sandbox.task_id is not None:
        await tasks.begin(tx, sandbox.task_id, attempt=sandbox.attempt)


async def finish(tx: Transaction, sandbox_id: UUID, given: Mapping[str, Any]) -> Sandbox:
    """The worker's last word. Said again, or after another end, it changes nothing."""
    sandbox = await _lock(tx.session, sandbox_id)
    if sandbox.status in sandboxes.ENDED:
        return sandbox
    values: dict[str, Any] = {
        "session_id": (given.get("session_id") or "")[:SESSION_CHARS] or None,
        "transcript": _blob(given.get("transcript_blob")),
    }
    given = {**given, "branch": _name(given.get("branch")), "commit": _name(given.get("commit"))}
    if sandbox.branch is None:
        given["branch"] = None  # without a repository there is none to speak of
    cancelled = sandbox.stop_code is FailureCode.CANCELLED
    if given["success"] and not cancelled:
        return await _succeed(tx, sandbox, given, values)
    code = given.get("failure_code") or FailureCode.AGENT_ERROR
    message = _cut(given.get("summary") or code.sentence)
    if sandbox.desired is DesiredState.STOP and sandbox.stop_code is not None:
        code, message = sandbox.stop_code, sandbox.stop_reason or message
    return await _fail(tx, sandbox, code, message, values, told=given)


async def lose(
    tx: Transaction,
    sandbox_id: UUID,
    code: FailureCode,
    message: str,
    *,
    again: bool = True,
    only_expired: bool = False,
) -> bool:
    """It has ended without a word of its own; nothing changes when it had one after all, or is heard of again."""
    sandbox = await _lock(tx.session, sandbox_id)
    if sandbox.status in sandboxes.ENDED or (only_expired and not await machines.is_expired(tx.session, sandbox_id)):
        return False
    lost = code is FailureCode.SANDBOX_LOST
    if sandbox.desired is DesiredState.STOP and sandbox.stop_code is not None:
        code, message, lost = sandbox.stop_code, sandbox.stop_reason or message, False
    await _fail(tx, sandbox, code, message, {}, lost=lost, again=again)
    return True


async def postpone(
    tx: Transaction, sandbox_id: UUID, *, seconds: float, message: str, boot: Sequence[Mapping[str, Any]]
) -> None:
    """There was no room for its machine: the same try waits for it, until then or until somebody stops it."""
    sandbox = await _lock(tx.session, sandbox_id)
    first = not sandbox.boot
    await sandboxes.note_boot(tx.session, sandbox_id, boot)
    if sandbox.status is SandboxStatus.STOPPING and sandbox.stop_code is not None:
        await _fail(tx, sandbox, sandbox.stop_code, sandbox.stop_reason or message, {})
    elif sandbox.status is SandboxStatus.PROVISIONING:
        await machines.launch_later(tx.session, sandbox_id, seconds=seconds)
        if first:
            tx.emit(sandbox_id, SandboxEventType.SANDBOX_STATUS, {"status": sandbox.status.name, "message": message})


async def stop(tx: Transaction, sandbox_id: UUID, *, reason: str | None) -> Sandbox:
    """Somebody ends this try, and with it the task, which can be retried."""
    [sandbox] = await sandboxes.by_ids(tx.session, [sandbox_id])
    if sandbox.status in sandboxes.ENDED:
        raise SandboxNotRunning(f"The sandbox is {sandbox.status.name} already.", path=["sandboxId"])
    if sandbox.task_id is not None:
        [task] = await tasks.by_ids(tx.session, [sandbox.task_id])
        if task.attempt == sandbox.attempt and task.status not in tasks.ENDED:
            await tasks.cancel(tx, task.id, reason=reason)
    with Checks() as checks:
        why = checks.line(reason, "reason") if reason else f"Stopped by {tx.principal.name}."[:LINE_CHARS]
    await sandboxes.stop(tx, sandbox_id, code=FailureCode.CANCELLED, reason=why)
    [stopped] = await sandboxes.by_ids(tx.session, [sandbox_id])
    return stopped


async def _succeed(tx: Transaction, sandbox: Sandbox, given: Mapping[str, Any], values: Mapping[str, Any]) -> Sandbox:
    done = await sandboxes.move(tx, sandbox.id, SandboxStatus.COMPLETED, finished_at=clock.now(), **values)
    assert done is not None
    if sandbox.task_id is not None:
        result = {name: given.get(name) for name in ("summary", "output", "branch", "commit")}
        result["checks"] = [dict(check) for check in given.get("checks") or ()]
        completed = await tasks.complete(tx, sandbox.task_id, attempt=sandbox.attempt, result=result)
        if completed is not None:
            await tickets.hand_over(tx, completed.ticket_id)
    await _tell_end(tx, done, success=True, summary=given["summary"], told=given)
    return done


async def _fail(
    tx: Transaction,
    sandbox: Sandbox,
    code: FailureCode,
    message: str,
    values: Mapping[str, Any],
    *,
    told: Mapping[str, Any] | None = None,
    lost: bool = False,
    again: bool = True,
) -> Sandbox:
    cancelled = code is FailureCode.CANCELLED
    status = SandboxStatus.CANCELLED if cancelled else SandboxStatus.LOST if lost else SandboxStatus.FAILED
    ended = await sandboxes.move(
        tx,
        sandbox.id,
        status,
        message=message,
        failure_code=code,
        failure_message=message,
        finished_at=clock.now(),
        **values,
    )
    assert ended is not None
    if sandbox.task_id is not None and not cancelled:
        await tasks.fail(tx, sandbox.task_id, attempt=sandbox.attempt, code=code, message=message, again=again)
    await _tell_end(tx, ended, success=False, summary=(told or {}).get("summary") or message, told=told or {})
    return ended


async def _tell_end(tx: Transaction, sandbox: Sandbox, *, success: bool, summary: str, told: Mapping[str, Any]) -> None:
    payload: Mapping[str, Any] = {
        "success": success,
        "summary": summary,
        "branch": told.get("branch"),
        "commit": told.get("commit"),
        "failureCode": sandbox.failure_code.name if sandbox.failure_code else None,
        "usage": {
            "inputTokens": sandbox.input_tokens,
            "outputTokens": sandbox.output_tokens,
            "cacheReadTokens": sandbox.cache_read_tokens,
            "cacheWriteTokens": sandbox.cache_write_tokens,
            "costUsd": sandbox.cost_micro_usd / 1_000_000,
        },
    }
    payload = await long_texts.keep(tx.session, sandbox.id, SandboxEventType.COMPLETED, payload)
    tx.emit(sandbox.id, SandboxEventType.COMPLETED, payload)
    ended = f"{sandbox.name} ended {sandbox.status.name}"
    tx.record("sandbox.ended", sandbox.id, ended, project_id=sandbox.project_id)
    tx.ring(sandboxes.MACHINES)
    tx.ring(sandboxes.inbox(sandbox.id))


async def _lock(session: AsyncSession, sandbox_id: UUID) -> Sandbox:
    """The ticket, the task, the sandbox: in the order that holds everywhere."""
    task_id = select(Sandbox.task_id).where(Sandbox.id == sandbox_id).scalar_subquery()
    ticket_id = select(Task.ticket_id).where(Task.id == task_id).scalar_subquery()
    await session.execute(select(Ticket.id).where(Ticket.id == ticket_id).with_for_update(key_share=True))
    return await sandboxes.lock(session, sandbox_id)


def _blob(sha256: str | None) -> bytes | None:
    if sha256 is None:
        return None
    try:
        return bytes.fromhex(sha256)
    except ValueError as error:
        raise InvalidInput("transcriptBlob is no hash.", path=["transcriptBlob"]) from error


def _cut(reason: str) -> str:
    return reason if len(reason) <= REASON_CHARS else reason[: REASON_CHARS - 1] + "…"


def _name(given: str | None) -> str | None:
    """A name that is too long for one is none; its first part would name something else."""
    return given if given and len(given) <= LINE_CHARS else None
