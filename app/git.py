"""Where the repository of a project is for its sandboxes, and what opens it."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import structlog
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from app import credentials, remotes, usage
from app.enums import CredentialKind, GitOperation
from app.errors import RepositoryRefused
from app.models import Project, Sandbox, Task, Ticket
from app.secrets import Keys
from app.settings import Settings

DOOR = "/git/repository.git"  # every sandbox finds its own project's repository here
SANDBOX_USERNAME = "sandbox"
GITHUB_USERNAME = "x-access-token"

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Issued:
    """What opens a repository for one operation."""

    username: str
    password: str
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The repository of one sandbox, and the one branch that is the sandbox's to write."""

    project: Project
    branch: str | None


def remote_url(settings: Settings, project: Project, callback_url: str) -> str | None:
    """What a worker clones; None: the project has no repository. RepositoryRefused: no worker could, or may."""
    address = project.clone_url
    if address is None:
        return None
    if isinstance(remotes.parse(address), remotes.Web):
        return address
    served(settings, project)
    return f"{callback_url.rstrip('/')}{DOOR}"


def served(settings: Settings, project: Project) -> remotes.Local | remotes.Distant:
    """What the door opens for a project's sandboxes; RepositoryRefused when it opens nothing."""
    remote = remotes.parse(project.clone_url or "")
    if remote is None or isinstance(remote, remotes.Web):
        raise RepositoryRefused("This project has no repository that the server hands to sandboxes.")
    if not project.repository_vouched:
        raise RepositoryRefused(
            f"No admin has linked {project.clone_url} to this project: {remotes.needs_admin(settings, remote)}. "
            "An admin who sets it as the project's repository allows it."
        )
    remotes.require_served(settings, remote)
    return remote


async def place(session: AsyncSession, sandbox_id: UUID) -> Place:
    found = await session.execute(
        select(Project, func.coalesce(Sandbox.branch, Ticket.branch))
        .join(Sandbox, Sandbox.project_id == Project.id)
        .outerjoin(Task, Task.id == Sandbox.task_id)
        .outerjoin(Ticket, Ticket.id == Task.ticket_id)
        .where(Sandbox.id == sandbox_id)
    )
    project, branch = found.one()
    return Place(project=project, branch=branch)


async def credential(
    session: AsyncSession, keys: Keys, settings: Settings, sandbox: Sandbox, operation: GitOperation
) -> Issued | None:
    """What opens the repository of the sandbox's own project, and no other; None: nothing is needed, or known."""
    project = (await place(session, sandbox.id)).project
    remote = remotes.parse(project.clone_url or "")
    issued = None
    if isinstance(remote, remotes.Web):
        issued = await _of_user(session, keys, sandbox, remote.origin)
        if issued is None and project.repository_vouched:
            issued = _of_server(settings, remote.origin)
    elif remote is not None:
        token = keys.sandbox_token(sandbox.id, sandbox.attempt)
        issued = Issued(username=SANDBOX_USERNAME, password=token, expires_at=sandbox.deadline_at)
    if issued is not None:
        log.info("git_credential_issued", sandbox=str(sandbox.id), operation=operation.value)
    return issued


async def _of_user(session: AsyncSession, keys: Keys, sandbox: Sandbox, origin: str | None) -> Issued | None:
    if origin != remotes.GITHUB:
        return None
    token = await credentials.use(session, keys, await usage.payer(session, sandbox.id), CredentialKind.GITHUB)
    return Issued(username=GITHUB_USERNAME, password=token) if token else None


def _of_server(settings: Settings, origin: str | None) -> Issued | None:
    for known in settings.git_credentials:
        if known.origin == origin:
            return Issued(username=known.username, password=known.password)
    return None
