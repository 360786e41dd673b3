"""Authentication: what a connection brought becomes a principal, and stops being one when its token ends."""

import asyncio
import time
from collections import OrderedDict, defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

import structlog
from sqlalchemy import ColumnElement, or_, select, union_all, update

from app import clock, tokens
from app.auth import Credentials, Principal
from app.bus import Bus
from app.db import Database, DatabaseUnavailable
from app.enums import PrincipalKind, TokenKind
from app.errors import AppError, Unauthenticated
from app.models import AccessToken, Sandbox, User
from app.secrets import SANDBOX_PREFIX, Keys

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


@dataclass(slots=True)
class _Asked:
    looking: asyncio.Task[Principal]
    waiting: int = 0


class Watched:
    """Those who wait for the end of something, by its id."""

    def __init__(self) -> None:
        self._waiting: defaultdict[UUID, set[asyncio.Future[AppError]]] = defaultdict(set)

    @property
    def ids(self) -> list[UUID]:
        return list(self._waiting)

    async def until_ended(self, watched_id: UUID) -> AppError:
        ended: asyncio.Future[AppError] = asyncio.get_running_loop().create_future()
        self._waiting[watched_id].add(ended)
        try:
            return await ended
        finally:
            self._waiting[watched_id].discard(ended)
            if not self._waiting[watched_id]:
                del self._waiting[watched_id]

    def end(self, watched_ids: Iterable[UUID], message: str) -> None:
        for watched_id in watched_ids:
            for ended in self._waiting.get(watched_id, ()):
                if not ended.done():
                    ended.set_result(Unauthenticated(message))


class Gate:
    def __init__(self, db: Database, bus: Bus, keys: Keys) -> None:
        self._db = db
        self._bus = bus
        self._keys = keys
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._asked: dict[tuple[str, TokenKind], _Asked] = {}  # what is looked up in this moment
        self._forgotten = 0  # how often
        self._tokens, self._sandboxes = Watched(), Watched()
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
        of_that_kind = _of_sandbox(secret, kind) or secret.startswith(tokens.PREFIXES[kind])
        if known is not None and known.until > time.monotonic() and of_that_kind:
            return known.principal
        return await self._asked_once(secret, kind)

    async def until_revoked(self, principal: Principal) -> AppError:
        """Waits for the moment from which this principal may act no longer, and says why."""
        if principal.kind is PrincipalKind.SANDBOX:
            return await self._sandboxes.until_ended(principal.id)
        if principal.token_id is None:
            await asyncio.Event().wait()
        assert principal.token_id is not None
        return await self._tokens.until_ended(principal.token_id)

    def _hear_commit(self, left: Mapping[Any, Any]) -> None:
        """A token was ended here: the next request is refused already, and the other replicas hear of it."""
        if tokens.ENDED in left:
            self._forget()
            self._bus.ring(TOPIC, time.time_ns())

    def _forget(self) -> None:
        """Believe nothing that was remembered, nor what is being looked up in this moment."""
        self._known.clear()
        self._asked.clear()
        self._forgotten += 1

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _asked_once(self, secret: str, kind: TokenKind) -> Principal:
        """Those who come with the same secret share one look-up. It ends with the last of them, not with the first."""
        key = secret, kind
        asked = self._asked.get(key)
        if asked is None:
            asked = self._asked[key] = _Asked(asyncio.create_task(self._look_up(secret, kind), name="token"))
        asked.waiting += 1
        try:
            return await asyncio.shield(asked.looking)
        finally:
            asked.waiting -= 1
            if not asked.waiting:
                asked.looking.cancel()
                if self._asked.get(key) is asked:
                    del self._asked[key]

    async def _look_up(self, secret: str, kind: TokenKind) -> Principal:
        self._known.pop(secret, None)
        forgotten = self._forgotten
        principal = await (self._sandbox_of(secret) if _of_sandbox(secret, kind) else self._user_of(secret, kind))
        if forgotten == self._forgotten:
            self._known[secret] = _Known(principal, time.monotonic() + REMEMBER_SECONDS)
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        return principal

    async def _user_of(self, secret: str, kind: TokenKind) -> Principal:
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
        return Principal(
            kind=user.kind, id=user.id, name=user.name, admin=user.admin, token_id=token.id, expires_at=token.expires_at
        )

    async def _sandbox_of(self, secret: str) -> Principal:
        """The worker of one attempt. Forged, of another attempt, ended: all that is the same to whoever asks."""
        if genuine := self._keys.read_sandbox_token(secret):
            sandbox_id, attempt = genuine
            async with self._db.reading() as session:
                name = await session.scalar(
                    select(Sandbox.name).where(
                        Sandbox.id == sandbox_id, Sandbox.attempt == attempt, Sandbox.finished_at.is_(None)
                    )
                )
            if name is not None:
                return Principal(kind=PrincipalKind.SANDBOX, id=sandbox_id, name=name)
        raise Unauthenticated("This sandbox's token is unknown, or its attempt is over.")

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
        tokens_, sandboxes = self._tokens.ids, self._sandboxes.ids
        if not tokens_ and not sandboxes:
            return
        async with self._db.reading() as session:
            usable = select(AccessToken.id).where(AccessToken.id.in_(tokens_), *tokens.usable())
            live = select(Sandbox.id).where(Sandbox.id.in_(sandboxes), Sandbox.finished_at.is_(None))
            going_on = set(await session.scalars(union_all(usable, live)))
        ended = {*tokens_, *sandboxes} - going_on
        if ended:
            self._forget()
        self._tokens.end(ended, "The token of this subscription was revoked or has expired.")
        self._sandboxes.end(ended, "The attempt of this sandbox is over.")


def _of_sandbox(secret: str, kind: TokenKind) -> bool:
    return kind is TokenKind.ACCESS and secret.startswith(SANDBOX_PREFIX)


def _unused_lately() -> ColumnElement[bool]:
    return or_(AccessToken.last_used_at.is_(None), AccessToken.last_used_at < clock.now() - LAST_USE_GRAIN)
