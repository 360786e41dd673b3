"""Authentication: what a connection brought becomes a principal, and stops being one when its token ends."""

import asyncio
import time
from collections import OrderedDict, defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

import structlog
from sqlalchemy import ColumnElement, or_, select, update

from app import clock, tokens
from app.auth import Credentials, Principal
from app.bus import Bus
from app.db import Database, DatabaseUnavailable
from app.enums import TokenKind
from app.errors import AppError, Unauthenticated
from app.models import AccessToken, User

REMEMBER_SECONDS = 1.0  # how long a token is believed without asking the database again
REMEMBERED = 10_000
WATCH_SECONDS = 0.5
LAST_USE_GRAIN = timedelta(minutes=1)
TOPIC = "tokens"

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Known:
    principal: Principal
    until: float


class Gate:
    def __init__(self, db: Database, bus: Bus) -> None:
        self._db = db
        self._bus = bus
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._forgotten = 0  # how often
        self._watched: defaultdict[UUID, set[asyncio.Future[AppError]]] = defaultdict(set)
        db.after_commit(self._hear_commit)

    async def authenticate(self, credentials: Credentials) -> Principal:
        """The principal, or Unauthenticated. A cookie counts only from an allowed page that marks its requests."""
        secret, kind = credentials.bearer, TokenKind.ACCESS
        if secret is None and credentials.cookie and credentials.origin_allowed and credentials.marked:
            secret, kind = credentials.cookie, TokenKind.SESSION
        if not secret:
            raise Unauthenticated(
                "Sign in first: send `Authorization: Bearer omoi_pat_…`, or use a sign-in link in the browser."
            )
        known = self._known.get(secret)
        if known is not None and known.until > time.monotonic() and secret.startswith(tokens.PREFIXES[kind]):
            return known.principal
        return await self._look_up(secret, kind)

    async def until_revoked(self, principal: Principal) -> AppError:
        """Waits for the moment from which this principal may act no longer, and says why."""
        if principal.token_id is None:
            await asyncio.Event().wait()
        ended: asyncio.Future[AppError] = asyncio.get_running_loop().create_future()
        assert principal.token_id is not None
        self._watched[principal.token_id].add(ended)
        try:
            return await ended
        finally:
            self._watched[principal.token_id].discard(ended)
            if not self._watched[principal.token_id]:
                del self._watched[principal.token_id]

    def _hear_commit(self, left: Mapping[Any, Any]) -> None:
        """A token was ended here: the next request is refused already, and the other replicas hear of it."""
        if tokens.ENDED in left:
            self._forget()
            self._bus.ring(TOPIC, time.time_ns())

    def _forget(self) -> None:
        """Believe nothing that was remembered, nor what is being looked up in this moment."""
        self._known.clear()
        self._forgotten += 1

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _look_up(self, secret: str, kind: TokenKind) -> Principal:
        self._known.pop(secret, None)
        forgotten = self._forgotten
        async with self._db.reading() as session:
            found = await session.execute(
                select(AccessToken, User, _unused_lately())
                .join(User, User.id == AccessToken.user_id)
                .where(AccessToken.hash == tokens.hashed(secret), AccessToken.kind == kind, *tokens.usable())
            )
            row = found.one_or_none()
        if row is None:
            raise Unauthenticated("This token is unknown, expired or revoked.")
        token, user, stale = row
        if stale:
            await self._note_use(token.id)
        principal = Principal(
            kind=user.kind, id=user.id, name=user.name, admin=user.admin, token_id=token.id, expires_at=token.expires_at
        )
        if forgotten == self._forgotten:
            self._known[secret] = _Known(principal, time.monotonic() + REMEMBER_SECONDS)
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        return principal

    async def _note_use(self, token_id: UUID) -> None:
        async with self._db.writing() as session:
            await session.execute(
                update(AccessToken).where(AccessToken.id == token_id).values(last_used_at=clock.now())
            )

    async def _watch(self) -> None:
        """One question a turn for all open subscriptions together: which of their tokens still count?"""
        with self._bus.listen(TOPIC) as bell:
            while True:
                if await bell.wait(WATCH_SECONDS):
                    self._forget()
                try:
                    await self._end_revoked()
                except DatabaseUnavailable:
                    pass  # said elsewhere; whoever reads meanwhile gets nothing, and the next turn asks again
                except Exception:
                    # The edge of the watch: were it to end, no revocation would be heard of any more.
                    log.exception("token_watch_failed")

    async def _end_revoked(self) -> None:
        watched = list(self._watched)
        if not watched:
            return
        async with self._db.reading() as session:
            found = await session.scalars(select(AccessToken.id).where(AccessToken.id.in_(watched), *tokens.usable()))
            usable = set(found)
        if len(usable) < len(watched):
            self._forget()
        for token_id in watched:
            if token_id not in usable:
                for ended in self._watched.get(token_id, ()):
                    if not ended.done():
                        ended.set_result(Unauthenticated("The token of this subscription was revoked or has expired."))


def _unused_lately() -> ColumnElement[bool]:
    return or_(AccessToken.last_used_at.is_(None), AccessToken.last_used_at < clock.now() - LAST_USE_GRAIN)
