"""Secrets that stand for a user: access tokens, browser sessions and sign-in links. Only their hashes are kept."""

import hashlib
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID

from sqlalchemy import ColumnElement, delete, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from app import clock
from app.enums import PrincipalKind, TokenKind
from app.errors import InvalidInput, LimitReached, NotFound, Unauthenticated
from app.inputs import Checks
from app.models import AccessToken, User
from app.transactions import Transaction

PREFIXES = {TokenKind.ACCESS: "omoi_pat_", TokenKind.SESSION: "omoi_ses_", TokenKind.SIGN_IN: "omoi_link_"}
SECRET_BYTES = 32
SESSION_LIFE = timedelta(days=30)
SIGN_IN_LIFE = timedelta(minutes=10)
ENDED_KEPT = timedelta(days=7)
ACCESS_TOKENS_OF_A_USER = 100
ENDED = "tokens_ended"  # left in a session's `info` by a transaction that ended one


def hashed(secret: str) -> bytes:
    """The secret has 256 random bits, so a plain hash is as good as a slow one."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def usable() -> tuple[ColumnElement[bool], ...]:
    """What holds for every token that still counts, by the database's clock."""
    return AccessToken.revoked_at.is_(None), or_(AccessToken.expires_at.is_(None), AccessToken.expires_at > clock.now())


async def create(
    tx: Transaction, user: User, *, name: str, expires_at: datetime | None = None
) -> tuple[AccessToken, str]:
    """An access token for a program. Its text is returned this once and known to nobody afterwards."""
    with Checks() as checks:
        name = checks.line(name, "name")
        if expires_at is not None and expires_at <= datetime.now(UTC):
            checks.refuse("expiresAt lies in the past.", ["expiresAt"])
    if len(await of_user(tx.session, user.id)) >= ACCESS_TOKENS_OF_A_USER:
        raise LimitReached(f"A user has {ACCESS_TOKENS_OF_A_USER} access tokens at most; revoke one first.")
    token, secret = await _insert(tx, user.id, TokenKind.ACCESS, name, expires_at=expires_at)
    tx.record("token.created", token.id, f"created the access token {name}", project_id=None)
    return token, secret


async def create_sign_in(tx: Transaction, user: User) -> str:
    """The secret of a link that signs one browser in, once, within ten minutes."""
    if user.kind is not PrincipalKind.USER:
        raise InvalidInput("Only people sign in; a service account uses access tokens.", path=["userId"])
    link, secret = await _insert(tx, user.id, TokenKind.SIGN_IN, "sign-in link", life=SIGN_IN_LIFE)
    tx.record("sign_in_link.created", link.id, f"created a sign-in link for {user.email}", project_id=None)
    return secret


async def sign_in(tx: Transaction, secret: str) -> tuple[User, str]:
    """Spend a sign-in link on a browser session; whoever comes second, or late, gets nothing."""
    spent = await tx.session.scalars(
        update(AccessToken)
        .where(AccessToken.hash == hashed(secret), AccessToken.kind == TokenKind.SIGN_IN, *usable())
        .values(revoked_at=clock.now(), last_used_at=clock.now())
        .returning(AccessToken)
    )
    link = spent.one_or_none()
    if link is None:
        raise Unauthenticated(
            "This sign-in link was used already, or is older than ten minutes. `omoi user link` makes a new one."
        )
    user = await tx.session.get_one(User, link.user_id)
    session, session_secret = await _insert(tx, user.id, TokenKind.SESSION, "browser", life=SESSION_LIFE)
    tx.record("session.created", session.id, f"signed in {user.email}", project_id=None)
    return user, session_secret


async def sign_out(tx: Transaction, secret: str) -> None:
    """End the browser session; an unknown one is ended already."""
    ended = await tx.session.scalar(
        update(AccessToken)
        .where(AccessToken.hash == hashed(secret), AccessToken.kind == TokenKind.SESSION, *usable())
        .values(revoked_at=clock.now())
        .returning(AccessToken.id)
    )
    if ended is not None:
        tx.session.info[ENDED] = True
        tx.record("session.ended", ended, "signed out", project_id=None)


async def revoke(tx: Transaction, token_id: UUID, *, of_user: UUID | None) -> AccessToken:
    """It counts no more from now on, for running subscriptions too. Revoking twice is harmless."""
    query = select(AccessToken).where(AccessToken.id == token_id).with_for_update()
    if of_user is not None:
        query = query.where(AccessToken.user_id == of_user)
    token = (await tx.session.scalars(query)).one_or_none()
    if token is None:
        raise NotFound(path=["tokenId"])
    if token.revoked_at is None:
        await tx.session.execute(update(AccessToken).where(AccessToken.id == token_id).values(revoked_at=clock.now()))
        tx.session.info[ENDED] = True
        tx.record("token.revoked", token.id, f"revoked the access token {token.name}", project_id=None)
    return token


async def of_user(session: AsyncSession, user_id: UUID) -> Sequence[AccessToken]:
    """A user's access tokens that still count, oldest first."""
    found = await session.scalars(
        select(AccessToken)
        .where(AccessToken.user_id == user_id, AccessToken.kind == TokenKind.ACCESS, *usable())
        .order_by(AccessToken.id)
    )
    return found.all()


async def by_ids(session: AsyncSession, token_ids: Sequence[UUID]) -> Sequence[AccessToken]:
    found = await session.scalars(
        select(AccessToken).where(AccessToken.id.in_(token_ids), AccessToken.kind == TokenKind.ACCESS)
    )
    return found.all()


async def all_with_users(session: AsyncSession) -> Sequence[tuple[AccessToken, User]]:
    """Every access token that still counts, for the server's own machine."""
    found = await session.execute(
        select(AccessToken, User)
        .join(User, User.id == AccessToken.user_id)
        .where(AccessToken.kind == TokenKind.ACCESS, *usable())
        .order_by(AccessToken.id)
    )
    return list(found)


async def forget_ended(session: AsyncSession, *, limit: int) -> int:
    """Delete up to `limit` links and sessions that have counted no more for a while. Access tokens stay on record."""
    ended = (
        select(AccessToken.id)
        .where(AccessToken.kind != TokenKind.ACCESS, AccessToken.expires_at < clock.now() - ENDED_KEPT)
        .limit(limit)
        .with_for_update(skip_locked=True)
        .cte("ended")
    )
    gone = await session.scalars(delete(AccessToken).where(AccessToken.id == ended.c.id).returning(AccessToken.id))
    return len(gone.all())


async def _insert(
    tx: Transaction,
    user_id: UUID,
    kind: TokenKind,
    name: str,
    *,
    expires_at: datetime | None = None,
    life: timedelta | None = None,
) -> tuple[AccessToken, str]:
    secret = PREFIXES[kind] + secrets.token_urlsafe(SECRET_BYTES)
    token = AccessToken(kind=kind, user_id=user_id, name=name, hash=hashed(secret), expires_at=expires_at)
    if life is not None:
        token.expires_at = clock.now() + life
    tx.session.add(token)
    await tx.session.flush()
    await tx.session.refresh(token)
    return token, secret
