"""What a sandbox is told and given at its start: everything that its worker will ever know from us."""

import base64
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import orjson
import structlog

from app import attempts, git, ids, resumes
from app.attempts import Briefing
from app.enums import EgressPolicy, PermissionMode
from app.errors import LimitReached, RepositoryRefused
from app.models import Sandbox
from app.settings import DEFAULT_PORTS
from orchestrator import instructions
from orchestrator.archive import worker_archive
from orchestrator.providers import Order, OrderRefused, Tier
from orchestrator.site import Site

MODEL_DOOR = "/model"
AUTHOR = {"name": "OmoiOS", "email": "agent@omoios.invalid"}
RESUME = ".omoi/resume"
DESCRIPTION = ".omoi/description.md"
PROMPT_BYTES = 60_000  # Linux takes 128 KiB in one variable
DATA_BYTES = 8_000  # of each description in the task's data; the prompt has it all
PATIENCE = {  # of an agent whose model is away: some twelve minutes, less than a silence that ends the attempt
    "CLAUDE_CODE_RETRY_WATCHDOG": "1",  # its program then asks more than 15 times
    "CLAUDE_CODE_RETRY_WATCHDOG_MAX_WAIT_MS": "720000",  # for a model that is overloaded
    "CLAUDE_CODE_RETRY_WATCHDOG_MAX_USAGE_LIMIT_WAIT_MS": "720000",
    "CLAUDE_CODE_MAX_RETRIES": "25",  # of a model that fails or is not reached; the pauses grow to half a minute
}
MARGIN_SECONDS = 600.0  # beyond its time, before the provider removes what everybody forgot

log = structlog.get_logger()

_PERMISSIONS = {
    PermissionMode.ACCEPT_EDITS: "acceptEdits",
    PermissionMode.BYPASS_PERMISSIONS: "bypassPermissions",
    PermissionMode.DONT_ASK: "dontAsk",
    PermissionMode.PLAN: "plan",
}


async def compose(site: Site, sandbox: Sandbox) -> Order:
    """The whole order; OrderRefused when there can be none."""
    async with site.change("launch") as tx:
        exposed = site.provider.capabilities().tier is Tier.PROCESS
        briefing = await attempts.brief(tx, sandbox.id, server_has_key=site.settings.has_model_key, exposed=exposed)
    _require_isolation(site, briefing)
    callback = site.provider.capabilities().callback_url
    try:
        remote = git.remote_url(site.settings, briefing.project, callback)
    except RepositoryRefused as refusal:
        raise OrderRefused(refusal.message) from refusal
    resumed, given = await _resumed(site, briefing)
    resources = briefing.settings.resources
    # What nobody vouched for may be named after a host of the server's own network.
    host, is_vouched = _repository_host(briefing, remote), briefing.project.repository_vouched
    return Order(
        name=sandbox.name,
        labels=labels(site, sandbox),
        env={**_environment(site, briefing, callback, remote), **resumed},
        files={"worker.pyz": worker_archive(), **_long_text(briefing), **given},
        cpu=resources.cpu,
        memory_gb=resources.memory_gb,
        disk_gb=resources.disk_gb,
        snapshot=resources.snapshot,
        image=resources.image,
        reachable=(*(host if is_vouched else ()), *_registries(site, briefing)),
        reachable_in_public=() if is_vouched else host,
        open_network=briefing.settings.egress is EgressPolicy.OPEN,
        life_seconds=site.settings.task_seconds + MARGIN_SECONDS,
    )


def labels(site: Site, sandbox: Sandbox) -> Mapping[str, str]:
    return {
        "deployment": site.fleet.deployment,
        "sandbox": ids.encode("sandbox", sandbox.id),
        "attempt": str(sandbox.attempt),
    }


def _require_isolation(site: Site, briefing: Briefing) -> None:
    """Without walls around it only the scripted model may work, unless the operator says otherwise. The gateway asks
    again, for a key may come later.
    """
    if briefing.sandbox.exposed and briefing.real_model and not site.settings.allow_unisolated:
        raise OrderRefused(
            f"This machine cannot isolate sandboxes ({site.provider.capabilities().note}), and a real model would work "
            "here. Set OMOI_ALLOW_UNISOLATED=true to let it."
        )


def _environment(site: Site, briefing: Briefing, callback: str, remote: str | None) -> dict[str, str]:
    sandbox, task, ticket, project = briefing.sandbox, briefing.task, briefing.ticket, briefing.project
    told = {
        "SANDBOX_ID": ids.encode("sandbox", sandbox.id),
        "TASK_ID": ids.encode("task", task.id),
        "TICKET_ID": ids.encode("ticket", ticket.id),
        "PROJECT_ID": ids.encode("project", project.id),
        "USER_ID": ids.encode("user", briefing.user_id),
        "GITHUB_REPO_OWNER": project.repository_owner,
        "GITHUB_REPO_NAME": project.repository_name,
        "REPO_URL": remote,
        "OMOI_GIT_DOOR": "1" if _is_served(briefing, remote) else None,
        "BRANCH_NAME": sandbox.branch,
        "BASE_BRANCH": project.default_branch if remote else None,
        "TASK_DESCRIPTION": _prompt(_description(briefing)),
        "TASK_DATA_BASE64": base64.b64encode(orjson.dumps(_data(briefing))).decode(),
        "CALLBACK_URL": callback,
        "ANTHROPIC_BASE_URL": callback + MODEL_DOOR,
        "OMOI_SANDBOX_TOKEN": site.keys.sandbox_token(sandbox.id, sandbox.attempt),
        "MODEL": briefing.settings.model or site.settings.model,
        "PERMISSION_MODE": _PERMISSIONS[briefing.settings.permission_mode],
        **PATIENCE,
        **site.worker_environment,
    }
    return {name: value for name, value in told.items() if value}


def _description(briefing: Briefing) -> str:
    task, ticket = briefing.task, briefing.ticket
    parts = [task.title, task.description]
    if task.title != ticket.title:
        parts += [f"It helps to finish #{ticket.number} {ticket.title}.", ticket.description]
    return "\n\n".join(part for part in parts if part)


def _prompt(text: str) -> str:
    """What fits into an environment: the beginning of a long text, and where the whole is."""
    if len(text.encode()) <= PROMPT_BYTES:
        return text
    return f"{_beginning(text, PROMPT_BYTES)}\n\n(This is only the beginning. Read the whole in ~/{DESCRIPTION} first.)"


def _long_text(briefing: Briefing) -> Mapping[str, bytes]:
    text = _description(briefing).encode()
    return {DESCRIPTION: text} if len(text) > PROMPT_BYTES else {}


def _beginning(text: str, most_bytes: int) -> str:
    return text.encode()[:most_bytes].decode(errors="ignore")


def _data(briefing: Briefing) -> Mapping[str, Any]:
    task, ticket, project, settings = briefing.task, briefing.ticket, briefing.project, briefing.settings
    return {
        "task": {
            "id": ids.encode("task", task.id),
            "title": task.title,
            "description": _beginning(task.description, DATA_BYTES),
            "phase": task.phase.name,
            "attempt": briefing.sandbox.attempt,
        },
        "ticket": {
            "id": ids.encode("ticket", ticket.id),
            "number": ticket.number,
            "title": ticket.title,
            "description": _beginning(ticket.description, DATA_BYTES),
            "kind": ticket.kind.name,
            "priority": ticket.priority.name,
        },
        "project": {"id": ids.encode("project", project.id), "name": project.name},
        "checks": list(settings.checks),
        "maxTurns": settings.max_turns,
        "enableSkills": settings.enable_skills,
        "subagents": instructions.SUBAGENTS if settings.enable_subagents else {},
        "guide": instructions.guide(briefing.sandbox.branch, settings.checks),
        "author": AUTHOR,
        "commitMessage": _commit_message(briefing),
    }


def _commit_message(briefing: Briefing) -> str:
    title = " ".join(briefing.ticket.title.split())
    return f"{title}\n\nTicket #{briefing.ticket.number}, task {ids.encode('task', briefing.task.id)}"


def _is_served(briefing: Briefing, remote: str | None) -> bool:
    """Behind this server's own git door: then the remote is not the address that the project names."""
    return remote != briefing.project.clone_url


def _repository_host(briefing: Briefing, remote: str | None) -> Sequence[str]:
    if not remote or _is_served(briefing, remote):
        return ()
    parts = urlsplit(remote)
    name = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return (f"{name}:{parts.port or DEFAULT_PORTS[parts.scheme]}",)


def _registries(site: Site, briefing: Briefing) -> Sequence[str]:
    return () if briefing.settings.egress is EgressPolicy.OFFLINE else site.settings.registries


async def _resumed(site: Site, briefing: Briefing) -> tuple[dict[str, str], dict[str, bytes]]:
    """The session and the edits of the try before, when the task shall go on from there."""
    earlier = briefing.earlier
    if earlier is None:
        return {}, {}
    given: dict[str, bytes] = {}
    async with site.db.reading() as session:
        transcript = await resumes.transcript(session, earlier)
        try:
            given[f"{RESUME}/edits.json"] = orjson.dumps(await resumes.edits(session, earlier))
        except LimitReached as error:  # the session goes on all the same, on the branch as it was pushed
            log.warning("edits_not_resumed", sandbox=briefing.sandbox.name, error=error.message)
    if transcript is None or earlier.session_id is None:
        return {}, given
    return {"RESUME_SESSION_ID": earlier.session_id}, {**given, f"{RESUME}/transcript.jsonl": transcript}
