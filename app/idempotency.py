"""The same key with the same input is the same request: it is done once, and answered with the same object."""

import hashlib
import json
from datetime import timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import delete, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from app import clock
from app.errors import IdempotencyMismatch, InvalidInput
from app.inputs import KEY_CHARS, unstorable
from app.models import IdempotencyKey
from app.transactions import Transaction

KEPT = timedelta(hours=24)
NOTHING_YET = UUID(int=0)


def fingerprint(given: Any) -> bytes:
    return hashlib.sha256(json.dumps(given, default=str, sort_keys=True).encode()).digest()


async def claim(tx: Transaction, operation: str, key: str, given: Any) -> UUID | None:
    """None when this request is the first; else the id of the object that the first one made.

    A second request that arrives while the first still runs waits here for its commit.
    """
    if not key or len(key) > KEY_CHARS or unstorable(key):
        raise InvalidInput(f"idempotencyKey has 1 to {KEY_CHARS} characters.", path=["idempotencyKey"])
    input_hash = fingerprint(given)
    place = {"principal_id": tx.principal.id, "operation": operation, "key": key}
    mine = await tx.session.scalar(
        insert(IdempotencyKey)
        .values(**place, input_hash=input_hash, object_id=NOTHING_YET)
        .on_conflict_do_nothing()
        .returning(IdempotencyKey.key)
    )
    if mine is not None:
        return None
    earlier = (await tx.session.scalars(select(IdempotencyKey).filter_by(**place))).one()
    if earlier.input_hash != input_hash:
        raise IdempotencyMismatch("This idempotencyKey was used with another input.", path=["idempotencyKey"])
    return earlier.object_id


async def settle(tx: Transaction, operation: str, key: str, object_id: UUID) -> None:
    """Remember what the first request made, in the transaction that makes it."""
    await tx.session.execute(
        update(IdempotencyKey)
        .filter_by(principal_id=tx.principal.id, operation=operation, key=key)
        .values(object_id=object_id)
    )


async def forget_old(session: AsyncSession, *, limit: int) -> int:
    """Delete up to `limit` keys that are older than a day."""
    old = (
        select(IdempotencyKey.principal_id, IdempotencyKey.operation, IdempotencyKey.key)
        .where(IdempotencyKey.created_at < clock.now() - KEPT)
        .limit(limit)
        .with_for_update(skip_locked=True)
        .cte("old")
    )
    gone = await session.scalars(
        delete(IdempotencyKey)
        .where(
            IdempotencyKey.principal_id == old.c.principal_id,
            IdempotencyKey.operation == old.c.operation,
            IdempotencyKey.key == old.c.key,
        )
        .returning(IdempotencyKey.key)
    )
    return len(gone.all())
