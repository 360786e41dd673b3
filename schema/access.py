"""Who may speak to the endpoint: what a connection brings as credentials, and whom to ask about them."""

import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from starlette.types import Scope

from app.auth import COOKIE, MARK, Credentials, Principal
from app.errors import AppError, Unavailable
from app.settings import Settings

Authenticate = Callable[[Credentials], Awaitable[Principal]]
UntilRevoked = Callable[[Principal], Awaitable[AppError]]
Headers = Mapping[bytes, bytes]


class Crowded(Unavailable):
    """There are as many connections as there may be; another replica, or a later moment, may have room."""

    def __init__(self) -> None:
        super().__init__("This server has as many open connections as it takes. Try again in a moment.")


class Room:
    """How many sockets and event streams are open, in all and for each account."""

    def __init__(self, settings: Settings) -> None:
        self._all, self._each = settings.connections, settings.account_connections
        self._accounts: Counter[UUID] = Counter()
        self.taken = 0

    @contextmanager
    def place(self, principal: Principal | None = None) -> Iterator[None]:
        """A place for one connection; without a principal it is one of all, with one also one of the account's."""
        if self.taken >= self._all:
            raise Crowded
        self.taken += 1
        try:
            with self.seat(principal) if principal else nullcontext():
                yield
        finally:
            self.taken -= 1

    @contextmanager
    def seat(self, principal: Principal) -> Iterator[None]:
        """One of the account's places, for a connection that has a place already."""
        if self._accounts[principal.id] >= self._each:
            raise Crowded
        self._accounts[principal.id] += 1
        try:
            yield
        finally:
            self._accounts[principal.id] -= 1
            if not self._accounts[principal.id]:
                del self._accounts[principal.id]


@dataclass(frozen=True, slots=True)
class Access:
    authenticate: Authenticate
    until_revoked: UntilRevoked
    origins: Callable[[str], bool]
    room: Room

    async def ended(self, principal: Principal) -> Exception:
        """Wait until this principal may act no longer, and say why. Not being able to tell is a reason too."""
        try:
            return await self.until_revoked(principal)
        except Exception as error:  # noqa: BLE001 - the edge: a watch that broke must not leave a stream unwatched
            return error

    def from_headers(self, headers: Headers) -> Credentials:
        bearer = _bearer(headers.get(b"authorization", b"").decode("latin-1"))
        return Credentials(
            bearer=bearer,
            cookie=None if bearer else _cookie(headers.get(b"cookie")),
            origin_allowed=self._origin_allowed(headers),
            marked=MARK.encode() in headers,
        )

    def from_init(self, headers: Headers, payload: Mapping[str, Any]) -> Credentials:
        """A socket's credentials: those of its handshake, and those a browser can only put into connection_init."""
        said = {key.lower(): value for key, value in payload.items()}
        bearer = _bearer(headers.get(b"authorization", b"").decode("latin-1"))
        bearer = bearer or _bearer(_text(said.get("authorization"))) or _text(said.get("token")) or None
        return Credentials(
            bearer=bearer,
            cookie=None if bearer else _cookie(headers.get(b"cookie")),
            origin_allowed=self._origin_allowed(headers),
            marked=MARK in said,
        )

    def refuses_origin(self, headers: Headers) -> bool:
        return b"origin" in headers and not self._origin_allowed(headers)

    def _origin_allowed(self, headers: Headers) -> bool:
        origin = headers.get(b"origin")
        return origin is not None and self.origins(origin.decode("latin-1"))


def request_id_of(scope: Scope) -> str:
    given = scope.get("state", {}).get("request_id")
    return given if isinstance(given, str) else new_request_id()


def new_request_id() -> str:
    return secrets.token_hex(8)


def _bearer(header: str) -> str | None:
    scheme, _, token = header.partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


def _cookie(header: bytes | None) -> str | None:
    for pair in (header or b"").decode("latin-1").split(";"):
        name, _, value = pair.strip().partition("=")
        if name == COOKIE:
            return value.strip('"') or None
    return None


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
