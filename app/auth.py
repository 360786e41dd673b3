"""Who calls, and what they may do: one principal type and one authorisation function for every transport."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import ColumnElement, Select, exists, literal, or_, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased

from app import ids
from app.enums import PrincipalKind, Role
from app.errors import Forbidden, NotFound
from app.inputs import camel
from app.models import AccessToken, Membership, Message, Sandbox, Task, Ticket, User

COOKIE = "omoi_session"
MARK = "omoi-client"  # a header, or on a socket a key of connection_init, that no foreign page can send
RANK = {Role.VIEWER: 1, Role.MEMBER: 2, Role.OWNER: 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    kind: PrincipalKind
    id: UUID
    name: str
    admin: bool = False
    token_id: UUID | None = None
    expires_at: datetime | None = None


# Who may see nothing: in this name is told what all may see who have come so far.
NOBODY = Principal(kind=PrincipalKind.USER, id=UUID(int=0), name="")
SYSTEM = Principal(kind=PrincipalKind.SYSTEM, id=UUID(int=0), name="omoi", admin=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """What a connection brought, whichever transport it came over."""

    bearer: str | None = None
    cookie: str | None = None
    origin_allowed: bool = False  # the Origin header is there and on the list
    marked: bool = False  # the header (on a socket: the connection_init key) that no foreign page can send


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What a field asks of its caller. A field without one cannot be built."""

    admin: bool = False
    role: Role | None = None  # in the project of the object that `of` names
    of: str | None = None  # the argument, or the input's field, that holds an object's id
    kinds: tuple[PrincipalKind, ...] = (PrincipalKind.USER, PrincipalKind.SERVICE)


SIGNED_IN = Rule()
ADMIN = Rule(admin=True)
WORKER = Rule(kinds=(PrincipalKind.SANDBOX,))
ANYBODY = Rule(kinds=(PrincipalKind.USER, PrincipalKind.SERVICE, PrincipalKind.SANDBOX))
REACHED = Rule(kinds=tuple(PrincipalKind))  # whoever may hold the object may read the field


def viewer(of: str) -> Rule:
    return Rule(role=Role.VIEWER, of=of)


def member(of: str) -> Rule:
    return Rule(role=Role.MEMBER, of=of)


def owner(of: str) -> Rule:
    return Rule(role=Role.OWNER, of=of)


async def authorise(session: AsyncSession, principal: Principal, rule: Rule, object_id: str | None = None) -> None:
    """Let the caller pass or raise. What they may not see answers exactly like what is not there."""
    admit(principal, rule)
    if rule.role is None:
        return
    assert rule.of is not None
    role = await role_for(session, principal, object_id or "")
    if role is None:
        raise NotFound(path=[camel(rule.of)])
    if RANK[role] < RANK[rule.role]:
        raise Forbidden(f"This needs the role {rule.role.upper()} in the project; yours is {role.upper()}.")


def admit(principal: Principal, rule: Rule) -> None:
    """The part of a rule that the caller alone decides."""
    if principal.kind not in rule.kinds:
        raise Forbidden(f"A {principal.kind} may not do this.")
    if rule.admin and not principal.admin:
        raise Forbidden("Only an admin may do this.")


async def role_for(session: AsyncSession, principal: Principal, object_id: str) -> Role | None:
    """The caller's role towards one object by its public id; None where there is nothing they may see."""
    return (await roles_for(session, principal, [object_id])).get(object_id)


async def roles_for(session: AsyncSession, principal: Principal, object_ids: Sequence[str]) -> Mapping[str, Role]:
    """The caller's role towards each object that they may see; one statement for each kind of object."""
    keys: defaultdict[str, dict[UUID, str]] = defaultdict(dict)
    for object_id in object_ids:
        decoded = ids.decode(object_id)
        if decoded is not None and decoded[0] in _ROLES:
            keys[decoded[0]][decoded[1]] = object_id
    roles: dict[str, Role] = {}
    for prefix, group in keys.items():
        found = await session.execute(_ROLES[prefix](principal, list(group)))
        roles |= {group[key]: role for key, role in found}
    return roles


def _of_project(principal: Principal, keys: Sequence[UUID]) -> Select[UUID, Role]:
    return select(Membership.project_id, Membership.role).where(
        Membership.user_id == principal.id, Membership.project_id.in_(keys)
    )


def _of_ticket(principal: Principal, keys: Sequence[UUID]) -> Select[UUID, Role]:
    return (
        select(Ticket.id, Membership.role)
        .join(Membership, Membership.project_id == Ticket.project_id)
        .where(Membership.user_id == principal.id, Ticket.id.in_(keys))
    )


def _of_task(principal: Principal, keys: Sequence[UUID]) -> Select[UUID, Role]:
    return (
        select(Task.id, Membership.role)
        .join(Membership, Membership.project_id == Task.project_id)
        .where(Membership.user_id == principal.id, Task.id.in_(keys))
    )


def _of_sandbox(principal: Principal, keys: Sequence[UUID]) -> Select[UUID, Role]:
    return (
        select(Sandbox.id, Membership.role)
        .join(Membership, Membership.project_id == Sandbox.project_id)
        .where(Membership.user_id == principal.id, Sandbox.id.in_(keys))
    )


def _of_message(principal: Principal, keys: Sequence[UUID]) -> Select[UUID, Role]:
    return (
        select(Message.id, Membership.role)
        .join(Sandbox, Sandbox.id == Message.sandbox_id)
        .join(Membership, Membership.project_id == Sandbox.project_id)
        .where(Membership.user_id == principal.id, Message.id.in_(keys))
    )


def _of_user(principal: Principal, keys: Sequence[UUID]) -> Select[UUID, Role]:
    """People see themselves and those they share a project with; admins see everybody."""
    return select(User.id, _literal(Role.VIEWER)).where(User.id.in_(keys), visible_user(principal))


def _of_token(principal: Principal, keys: Sequence[UUID]) -> Select[UUID, Role]:
    return select(AccessToken.id, _literal(Role.OWNER)).where(
        AccessToken.id.in_(keys), AccessToken.user_id == principal.id
    )


def visible_user(principal: Principal) -> ColumnElement[bool]:
    mine, theirs = aliased(Membership), aliased(Membership)
    shared = exists().where(
        mine.user_id == principal.id, theirs.user_id == User.id, mine.project_id == theirs.project_id
    )
    return or_(User.id == principal.id, shared, literal(principal.admin))


def _literal(role: Role) -> ColumnElement[Role]:
    return literal(role, Membership.role.type)


_ROLES = {
    "project": _of_project,
    "ticket": _of_ticket,
    "task": _of_task,
    "sandbox": _of_sandbox,
    "message": _of_message,
    "user": _of_user,
    "token": _of_token,
}
