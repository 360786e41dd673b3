"""Who exists: people, and service accounts that belong to programs."""

import re
from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from app import ids
from app.enums import PrincipalKind
from app.errors import Conflict
from app.inputs import Checks, unstorable
from app.models import User
from app.transactions import Transaction

EMAIL_CHARS = 254
EMAIL = re.compile(r"[^@\s]+@[^@\s]+")


async def create(
    tx: Transaction, *, email: str, name: str, admin: bool = False, kind: PrincipalKind = PrincipalKind.USER
) -> User:
    with Checks() as checks:
        name = checks.line(name, "name")
        email = checks.line(email, "email", chars=EMAIL_CHARS).lower()
        if not checks.refusals and not EMAIL.fullmatch(email):
            checks.refuse("email is no address like name@example.com.", ["email"])
    made = await tx.session.scalars(
        insert(User)
        .values(id=ids.new(), kind=kind, email=email, name=name, admin=admin)
        .on_conflict_do_nothing()
        .returning(User)
    )
    user = made.one_or_none()
    if user is None:
        raise Conflict(f"{email} has an account already.", path=["email"])
    tx.record("user.created", user.id, f"created the account of {email}", project_id=None)
    return user


async def by_email(session: AsyncSession, email: str) -> User | None:
    if unstorable(email):
        return None
    found = await session.scalars(select(User).where(func.lower(User.email) == email.strip().lower()))
    return found.one_or_none()


async def by_ids(session: AsyncSession, user_ids: Sequence[UUID]) -> Sequence[User]:
    found = await session.scalars(select(User).where(User.id.in_(user_ids)))
    return found.all()


async def everyone(session: AsyncSession) -> Sequence[User]:
    found = await session.scalars(select(User).order_by(User.id))
    return found.all()


async def first_admin(session: AsyncSession) -> User | None:
    """The oldest person who may do everything: who the command line acts for when nobody is named."""
    found = await session.scalars(
        select(User).where(User.admin, User.kind == PrincipalKind.USER).order_by(User.id).limit(1)
    )
    return found.one_or_none()
