"""What users let the server hold for them, one secret of each kind: written, used and deleted, never read back."""

import re
from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

from sqlalchemy import ColumnElement, delete, or_, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from app import clock
from app.enums import CredentialKind
from app.errors import InvalidInput, NotFound
from app.models import Credential
from app.secrets import Keys
from app.transactions import Transaction

SHORTEST_CHARS = 8  # what is shorter could not be told from other text where it must be masked
LONGEST_CHARS = 8_192
HINT_CHARS = 4
HINTED_CHARS = 12
NO_HINT = "••••"
PRINTABLE = re.compile(r"[!-~]+")  # it travels in headers
LAST_USE_GRAIN = timedelta(minutes=1)
CHANGED = "credentials_changed"  # left in a session's `info` by a transaction that changed one


async def keep(tx: Transaction, keys: Keys, kind: CredentialKind, secret: str) -> Credential:
    """Hold this for the caller, in the place of an earlier one of the same kind."""
    secret = secret.strip()
    if not SHORTEST_CHARS <= len(secret) <= LONGEST_CHARS or not PRINTABLE.fullmatch(secret):
        raise InvalidInput(
            f"secret has {SHORTEST_CHARS} to {LONGEST_CHARS:,} ASCII characters without spaces.", path=["secret"]
        )
    user_id = tx.principal.id
    key_id, sealed = keys.seal(secret, about=_about(user_id, kind))
    values = {"key_id": key_id, "sealed": sealed, "hint": _hint(secret), "created_at": clock.now()}
    stored = await tx.session.scalars(
        insert(Credential)
        .values(user_id=user_id, kind=kind, **values)
        .on_conflict_do_update(index_elements=["user_id", "kind"], set_={**values, "last_used_at": None})
        .returning(Credential)
        .execution_options(populate_existing=True)
    )
    tx.session.info[CHANGED] = True
    tx.record("credential.set", user_id, f"set the {kind.name} credential", project_id=None)
    return stored.one()


async def forget(tx: Transaction, kind: CredentialKind) -> Credential:
    """Hold it no longer; answers what there was."""
    gone = await tx.session.scalars(
        delete(Credential).where(Credential.user_id == tx.principal.id, Credential.kind == kind).returning(Credential)
    )
    credential = gone.one_or_none()
    if credential is None:
        raise NotFound(path=["kind"])
    tx.session.info[CHANGED] = True
    tx.record("credential.deleted", tx.principal.id, f"deleted the {kind.name} credential", project_id=None)
    return credential


async def of_user(session: AsyncSession, user_id: UUID) -> Sequence[Credential]:
    found = await session.scalars(select(Credential).where(Credential.user_id == user_id).order_by(Credential.kind))
    return found.all()


async def has(session: AsyncSession, user_id: UUID, kind: CredentialKind) -> bool:
    found = await session.scalar(
        select(Credential.user_id).where(Credential.user_id == user_id, Credential.kind == kind)
    )
    return found is not None


async def use(session: AsyncSession, keys: Keys, user_id: UUID, kind: CredentialKind) -> str | None:
    """The secret itself, for a call made on the user's behalf. A session that commits notes its use, to the minute.

    Raises Unreadable for one that was changed in the database, or sealed with another root key.
    """
    found = await session.execute(
        select(Credential, _unused_lately()).where(Credential.user_id == user_id, Credential.kind == kind)
    )
    row = found.one_or_none()
    if row is None:
        return None
    credential, stale = row
    if stale:
        await _note_use(session, credential)
    return unsealed(keys, credential)


def unsealed(keys: Keys, credential: Credential) -> str:
    about = _about(credential.user_id, credential.kind)
    return keys.unseal(credential.key_id, credential.sealed, about=about)


async def _note_use(session: AsyncSession, credential: Credential) -> None:
    """Nobody waits for another's note: when the row is taken, it is somebody who writes the same minute into it."""
    mine = (Credential.user_id == credential.user_id, Credential.kind == credential.kind)
    free = select(Credential.user_id).where(*mine).with_for_update(skip_locked=True)
    await session.execute(
        update(Credential)
        .where(*mine, Credential.user_id.in_(free))
        .values(last_used_at=clock.now())
        .execution_options(synchronize_session=False)
    )


def _unused_lately() -> ColumnElement[bool]:
    return or_(Credential.last_used_at.is_(None), Credential.last_used_at < clock.now() - LAST_USE_GRAIN)


def _about(user_id: UUID, kind: CredentialKind) -> str:
    return f"credential {kind.value} of {user_id}"


def _hint(secret: str) -> str:
    """Its last characters, of one that is long enough to be told apart by them and stay a secret."""
    return secret[-HINT_CHARS:] if len(secret) >= HINTED_CHARS else NO_HINT
