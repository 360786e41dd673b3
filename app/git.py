"""Where the repository of a project is for its sandboxes, and what opens it."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from urllib.parse import unquote, urlsplit
from uuid import UUID

import structlog
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from app import credentials, usage
from app.enums import CredentialKind, GitOperation
from app.errors import RepositoryRefused
from app.models import Project, Sandbox, Task, Ticket
from app.secrets import Keys
from app.settings import Settings, origin_of

DOOR = "/git/repository.git"  # every sandbox finds its own project's repository here
SANDBOX_USERNAME = "sandbox"
GITHUB = "https://github.com"
GITHUB_USERNAME = "x-access-token"
REPOSITORIES = "repositories"

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
    if urlsplit(address).scheme in {"http", "https"}:
        return address
    folder(settings, project)
    return f"{callback_url.rstrip('/')}{DOOR}"


def folder(settings: Settings, project: Project) -> Path:
    """The git folder behind a project's address on this machine, links followed; refused outside of what is allowed."""
    path = _path_of(project.clone_url or "")
    if path is None:
        raise RepositoryRefused("A sandbox reaches a repository by its https address; set that as the project's.")
    found = path.resolve()
    found = (found / ".git").resolve() if (found / ".git").exists() else found
    if not any(found.is_relative_to(allowed) for allowed in folders(settings)):
        raise RepositoryRefused(
            f"The repository {path} is in no folder that projects may use; OMOI_REPOSITORY_FOLDERS lists these."
        )
    if not (found / "HEAD").is_file():
        raise RepositoryRefused(f"There is no git repository at {path} on the server.")
    return found


def folders(settings: Settings) -> Sequence[Path]:
    """Where repositories on this machine may lie, links followed."""
    return [one.resolve() for one in settings.repository_folders or (settings.data / REPOSITORIES,)]


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
    address = (await place(session, sandbox.id)).project.clone_url or ""
    issued = None
    if _path_of(address):
        token = keys.sandbox_token(sandbox.id, sandbox.attempt)
        issued = Issued(username=SANDBOX_USERNAME, password=token, expires_at=sandbox.deadline_at)
    elif origin := _origin(address):
        issued = await _of_user(session, keys, sandbox, origin) or _of_server(settings, origin)
    if issued is not None:
        log.info("git_credential_issued", sandbox=str(sandbox.id), operation=operation.value)
    return issued


async def _of_user(session: AsyncSession, keys: Keys, sandbox: Sandbox, origin: str) -> Issued | None:
    if origin != GITHUB:
        return None
    token = await credentials.use(session, keys, await usage.payer(session, sandbox.id), CredentialKind.GITHUB)
    return Issued(username=GITHUB_USERNAME, password=token) if token else None


def _of_server(settings: Settings, origin: str) -> Issued | None:
    for known in settings.git_credentials:
        if known.origin == origin:
            return Issued(username=known.username, password=known.password)
    return None


def _origin(address: str) -> str | None:
    """Of a web address without a user in it; for any other no credential is the right one."""
    try:
        parts = urlsplit(address)
        return origin_of(f"{parts.scheme}://{parts.netloc}")
    except ValueError:
        return None


def _path_of(address: str) -> Path | None:
    if address.startswith("/"):
        return Path(address)
    if address.startswith("file:///"):
        return Path(unquote(address.removeprefix("file://")))
    return None
