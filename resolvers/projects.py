"""Answers about projects, their settings and members."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from app import ids, paging, projects
from app.enums import Role
from app.models import Membership, Project, User
from app.projects import ProjectSettings
from app.transactions import Transaction
from resolvers.context import Context, Services

Given = dict[str, Any]


async def project(context: Context, root: Any, id: str) -> Project:
    found: Project = await context.loaders.projects.load(ids.require(id, "project", "id"))
    return found


async def projects_of_viewer(
    context: Context, root: Any, include_archived: bool | None, **page: Any
) -> paging.Page[Project]:
    principal, db = context.principal, context.services.db
    archived_too = bool(include_archived)

    async def count() -> int:
        async with db.reading() as session:
            return await projects.count(session, principal, include_archived=archived_too)

    async with db.reading() as session:
        query = projects.of(principal, include_archived=archived_too)
        cursors = paging.Sealed(f"projects of {principal.id}")
        arguments = paging.Arguments(**page)
        return await paging.page(session, query, projects.NEWEST_FIRST, arguments, cursors=cursors, count=count)


def settings_of(context: Context, project: Project) -> ProjectSettings:
    return ProjectSettings.stored(project.settings)


def repository_of(context: Context, project: Project) -> Project | None:
    """The repository is told by the project's own columns."""
    return project if project.repository_host else None


async def creator_of(context: Context, project: Project) -> User:
    user: User = await context.loaders.users.load(project.created_by)
    return user


async def members_of(context: Context, project: Project) -> Sequence[Membership]:
    members: Sequence[Membership] = await context.loaders.members.load(project.id)
    return members


async def user_of_membership(context: Context, membership: Membership) -> User:
    user: User = await context.loaders.users.load(membership.user_id)
    return user


async def role_of_viewer(context: Context, project: Project) -> Role:
    role: Role = await context.loaders.roles.load(project.id)
    return role


async def create(tx: Transaction, given: Given, *, services: Services) -> Project:
    return await projects.create(
        tx,
        services.settings,
        name=given["name"],
        description=given.get("description") or "",
        repository=given.get("repository"),
        settings=given.get("settings"),
    )


async def change(tx: Transaction, given: Given, *, services: Services) -> Project:
    return await projects.change(tx, services.settings, _key(given.pop("project_id")), given)


async def archive(tx: Transaction, given: Given) -> Project:
    return await projects.archive(tx, _key(given["project_id"]), archived=given["archived"])


async def set_member(tx: Transaction, given: Given) -> Project:
    return await projects.set_member(tx, _key(given["project_id"]), email=given["email"], role=given["role"])


async def remove_member(tx: Transaction, given: Given) -> Project:
    user_id = ids.require(given["user_id"], "user", "userId")
    return await projects.remove_member(tx, _key(given["project_id"]), user_id)


def _key(public_id: str) -> UUID:
    return ids.require(public_id, "project", "projectId")
