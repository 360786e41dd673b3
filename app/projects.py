"""A project: a repository, its members, and how its work is done."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any
from uuid import UUID

from sqlalchemy import Select, delete, func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from app import clock, ids, paging, repositories, rights, streams, users
from app.auth import Principal
from app.enums import EgressPolicy, PermissionMode, Role
from app.errors import Conflict, InvalidInput, NotFound, ProjectArchived
from app.inputs import Checks, camel
from app.models import Membership, Project
from app.settings import Settings
from app.transactions import Transaction

NAME_CHARS = 100
COMMAND_CHARS = 1_000
CHECKS_OF_A_PROJECT = 20
NEWEST_FIRST = paging.Order(Project.id, descending=True)


@dataclass(frozen=True, kw_only=True)
class Resources:
    cpu: int = 2
    memory_gb: int = 4
    disk_gb: int = 10
    snapshot: str | None = None
    image: str | None = None


@dataclass(frozen=True, kw_only=True)
class ProjectSettings:
    concurrency: int = 4
    max_attempts: int = 3
    model: str | None = None
    resources: Resources = field(default_factory=Resources)
    checks: Sequence[str] = ()
    egress: EgressPolicy = EgressPolicy.REGISTRIES
    budget_usd: float | None = None
    auto_approve_specs: bool = False
    auto_steer: bool = True
    open_pull_requests: bool = False
    permission_mode: PermissionMode = PermissionMode.ACCEPT_EDITS
    max_turns: int = 100
    enable_skills: bool = False
    enable_subagents: bool = False

    @classmethod
    def stored(cls, row: Mapping[str, Any]) -> "ProjectSettings":
        """What the row says; a setting that is younger than the row has its default."""
        return cls(
            **{
                **row,
                "resources": Resources(**row.get("resources", {})),
                "egress": _EGRESS[row.get("egress", cls.egress)],
                "permission_mode": _PERMISSIONS[row.get("permission_mode", cls.permission_mode)],
            }
        )

    def changed(self, given: Mapping[str, Any]) -> "ProjectSettings":
        """These settings with what was given in its place; null brings back the default."""
        defaults = ProjectSettings()
        values = {name: getattr(defaults, name) if value is None else value for name, value in given.items()}
        if (resources := given.get("resources")) is not None:
            initial = Resources()
            sizes = {name: getattr(initial, name) if value is None else value for name, value in resources.items()}
            values["resources"] = replace(self.resources, **sizes)
        return replace(self, **values)


_EGRESS = {policy.value: policy for policy in EgressPolicy}
_PERMISSIONS = {mode.value: mode for mode in PermissionMode}
LIMITS = {"concurrency": (1, 1_000), "max_attempts": (1, 20), "max_turns": (1, 10_000)}
RESOURCE_LIMITS = {"cpu": (1, 64), "memory_gb": (1, 512), "disk_gb": (1, 2_000)}
LARGEST_BUDGET_USD = 1_000_000


async def create(
    tx: Transaction,
    server: Settings,
    *,
    name: str,
    description: str = "",
    repository: Mapping[str, str | None] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Project:
    """Its creator is its first owner, and its feed begins with this."""
    wanted = ProjectSettings().changed(settings or {})
    with Checks() as checks:
        name = checks.line(name, "name", chars=NAME_CHARS)
        description = checks.block(description, "description")
        columns = _repository(checks, repository, server, tx)
        wanted = _checked(checks, wanted)
    project = Project(
        id=ids.new(), name=name, description=description, settings=asdict(wanted), created_by=tx.principal.id, **columns
    )
    tx.session.add(project)
    await tx.session.flush()
    tx.session.add(Membership(project_id=project.id, user_id=tx.principal.id, role=Role.OWNER))
    await streams.create(tx.session, {project.id: project.id})
    await tx.session.refresh(project)
    tx.record("project.created", project.id, f"created the project {name}", project_id=project.id)
    return project


async def change(tx: Transaction, server: Settings, project_id: UUID, given: Mapping[str, Any]) -> Project:
    """Set only what was given; two people who change different things both get their way."""
    project = await lock(tx.session, project_id)
    values: dict[str, Any] = {}
    with Checks() as checks:
        if given.get("name") is not None:
            values["name"] = checks.line(given["name"], "name", chars=NAME_CHARS)
        if given.get("description") is not None:
            values["description"] = checks.block(given["description"], "description")
        if "repository" in given:
            values |= _repository(checks, given["repository"], server, tx, project)
        if given.get("settings") is not None:
            wanted = ProjectSettings.stored(project.settings).changed(given["settings"])
            values["settings"] = asdict(_checked(checks, wanted))
    values = {name: value for name, value in values.items() if getattr(project, name) != value}
    if not values:
        return project
    changed = [
        name for name in given if name in values or (name == "repository" and repositories.none().keys() & values)
    ]
    tx.record(
        "project.changed", project_id, f"changed {' and '.join(sorted(changed))} of the project", project_id=project_id
    )
    return await _update(tx.session, project_id, values)


async def archive(tx: Transaction, project_id: UUID, *, archived: bool) -> Project:
    """An archived project keeps everything and starts nothing. Asking twice is harmless."""
    project = await lock(tx.session, project_id, even_archived=True)
    if (project.archived_at is not None) == archived:
        return project
    verb, summary = (
        ("archived", "archived the project") if archived else ("restored", "took the project out of the archive")
    )
    tx.record(f"project.{verb}", project_id, summary, project_id=project_id)
    return await _update(tx.session, project_id, {"archived_at": clock.now() if archived else None})


async def set_member(tx: Transaction, project_id: UUID, *, email: str, role: Role) -> Project:
    """Add a user, or give one another role, also in an archived project. The last owner stays an owner."""
    project = await lock(tx.session, project_id, even_archived=True)
    user = await users.by_email(tx.session, email)
    if user is None:
        raise InvalidInput("Nobody has an account with this address; an admin can create one.", path=["email"])
    if role is not Role.OWNER:
        await _keep_an_owner(tx.session, project_id, without=user.id)
    changed = await tx.session.scalar(
        insert(Membership)
        .values(project_id=project_id, user_id=user.id, role=role)
        .on_conflict_do_update(
            index_elements=["project_id", "user_id"], set_={"role": role}, where=Membership.role != role
        )
        .returning(Membership.user_id)
    )
    if changed is None:
        return project
    tx.record(
        "project.member_set", project_id, f"made {user.name} {role.upper()} of the project", project_id=project_id
    )
    return project


async def remove_member(tx: Transaction, project_id: UUID, user_id: UUID) -> Project:
    """From the next moment on they see nothing of it, live streams included. Archived or not, access can be taken."""
    project = await lock(tx.session, project_id, even_archived=True)
    await _keep_an_owner(tx.session, project_id, without=user_id)
    gone = await tx.session.scalar(
        delete(Membership)
        .where(Membership.project_id == project_id, Membership.user_id == user_id)
        .returning(Membership.user_id)
    )
    if gone is None:
        raise NotFound(path=["userId"])
    tx.session.info[rights.LOST] = (project_id, user_id)
    [user] = await users.by_ids(tx.session, [user_id])
    tx.record("project.member_removed", project_id, f"removed {user.name} from the project", project_id=project_id)
    return project


async def lock(session: AsyncSession, project_id: UUID, *, even_archived: bool = False) -> Project:
    """Take the project's row: whoever changes the project, or how its parts depend on each other, comes one by one."""
    found = await session.scalars(
        select(Project)
        .where(Project.id == project_id)
        .with_for_update(key_share=True)
        .execution_options(populate_existing=True)
    )
    project = found.one_or_none()
    if project is None:
        raise NotFound(path=["projectId"])
    if not even_archived:
        _require_active(project)
    return project


async def hold(session: AsyncSession, project_id: UUID, *, even_archived: bool = False) -> None:
    """For a change of one part of the project: others may hold it too, but nobody archives it meanwhile.

    Locks are taken in this order everywhere: project, ticket, task, stream.
    """
    found = await session.scalars(
        select(Project)
        .where(Project.id == project_id)
        .with_for_update(read=True)
        .execution_options(populate_existing=True)
    )
    project = found.one()
    if not even_archived:
        _require_active(project)


async def by_ids(session: AsyncSession, project_ids: Sequence[UUID]) -> Sequence[Project]:
    found = await session.scalars(select(Project).where(Project.id.in_(project_ids)))
    return found.all()


async def roles_of(session: AsyncSession, principal: Principal, project_ids: Sequence[UUID]) -> Mapping[UUID, Role]:
    found = await session.execute(
        select(Membership.project_id, Membership.role).where(
            Membership.user_id == principal.id, Membership.project_id.in_(project_ids)
        )
    )
    return dict(found.all())


async def members_of(session: AsyncSession, project_ids: Sequence[UUID]) -> Sequence[Membership]:
    found = await session.scalars(
        select(Membership)
        .where(Membership.project_id.in_(project_ids))
        .order_by(Membership.created_at, Membership.user_id)
    )
    return found.all()


def of(principal: Principal, *, include_archived: bool) -> Select[Project]:
    """The projects that a principal belongs to."""
    query = select(Project).join(Membership).where(Membership.user_id == principal.id)
    return query if include_archived else query.where(Project.archived_at.is_(None))


async def count(session: AsyncSession, principal: Principal, *, include_archived: bool) -> int:
    query = of(principal, include_archived=include_archived).with_only_columns(func.count())
    return await session.scalar(query) or 0


def _require_active(project: Project) -> None:
    if project.archived_at is not None:
        raise ProjectArchived(f"The project {project.name} is archived. Restore it first.")


async def _update(session: AsyncSession, project_id: UUID, values: Mapping[str, Any]) -> Project:
    changed = await session.scalars(
        update(Project)
        .where(Project.id == project_id)
        .values(**values, updated_at=clock.now())
        .returning(Project)
        .execution_options(populate_existing=True)
    )
    return changed.one()


async def _keep_an_owner(session: AsyncSession, project_id: UUID, *, without: UUID) -> None:
    """The project's row is locked, so two owners cannot leave at the same time."""
    others = await session.scalar(
        select(func.count()).where(
            Membership.project_id == project_id, Membership.role == Role.OWNER, Membership.user_id != without
        )
    )
    if not others:
        raise Conflict("A project needs an owner, and this is the last one. Make somebody else owner first.")


def _repository(
    checks: Checks,
    given: Mapping[str, str | None] | None,
    server: Settings,
    tx: Transaction,
    now: Project | None = None,
) -> Mapping[str, Any]:
    if not given:
        return repositories.none()
    return repositories.checked(checks, given, settings=server, principal=tx.principal, now=now)


def _checked(checks: Checks, wanted: ProjectSettings) -> ProjectSettings:
    """These settings as they are stored, each refusal told."""
    for name, (low, high) in LIMITS.items():
        checks.between(getattr(wanted, name), low, high, "settings", camel(name))
    for name, (low, high) in RESOURCE_LIMITS.items():
        checks.between(getattr(wanted.resources, name), low, high, "settings", "resources", camel(name))
    if wanted.budget_usd is not None:
        checks.between(wanted.budget_usd, 0, LARGEST_BUDGET_USD, "settings", "budgetUsd")
    checks.at_most(wanted.checks, CHECKS_OF_A_PROJECT, "settings", "checks")
    return replace(
        wanted,
        model=checks.line(wanted.model, "settings", "model") if wanted.model is not None else None,
        checks=[
            checks.line(command, "settings", "checks", str(place), chars=COMMAND_CHARS)
            for place, command in enumerate(wanted.checks[:CHECKS_OF_A_PROJECT])
        ],
        resources=replace(
            wanted.resources,
            snapshot=_named(checks, wanted.resources.snapshot, "snapshot"),
            image=_named(checks, wanted.resources.image, "image"),
        ),
    )


def _named(checks: Checks, value: str | None, name: str) -> str | None:
    return checks.line(value, "settings", "resources", name) if value is not None else None
