"""Where the model answers: its address, the server's own key for it, and which headers pass in either direction."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Self

from app.errors import CredentialMissing
from app.settings import Settings

OAUTH_PREFIX = "sk-ant-oat"
OAUTH_BETA = "oauth-2025-04-20"
BETA = b"anthropic-beta"
SCRIPTED_KEY = "scripted"

HOP_BY_HOP = {
    b"connection",
    b"keep-alive",
    b"proxy-authenticate",
    b"proxy-authorization",
    b"proxy-connection",
    b"te",
    b"trailer",
    b"transfer-encoding",
    b"upgrade",
}
OURS = {b"host", b"authorization", b"x-api-key", b"cookie", b"origin", b"referer", b"x-request-id", b"expect"}
FORWARDED = (b"x-forwarded-", b"forwarded", b"x-real-ip")
THEIRS = {b"server", b"date", b"set-cookie", b"alt-svc", b"strict-transport-security", b"x-request-id"}

Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    url: str
    api_key: str | None = field(default=None, repr=False)
    auth_token: str | None = field(default=None, repr=False)
    stand_in: str | None = None  # plays a script for those without a key; nobody's key is shown to it

    @classmethod
    def of(cls, settings: Settings, *, stand_in: str | None = None) -> Self:
        return cls(
            url=settings.anthropic_base_url,
            api_key=settings.anthropic_api_key,
            auth_token=settings.anthropic_auth_token,
            stand_in=stand_in,
        )

    def address(self, path: str, query: bytes, secret: str | None) -> str:
        url = self.stand_in if self.stand_in and not self.is_real(secret) else self.url
        asked = f"?{query.decode('latin-1')}" if query else ""
        return f"{url.rstrip('/')}/{path}{asked}"

    def is_real(self, secret: str | None) -> bool:
        """Whether there is a key for the model that this secret's owner, or nobody's, is answered with."""
        return bool(secret or self.api_key or self.auth_token)

    def request_headers(self, given: Iterable[tuple[bytes, bytes]], secret: str | None) -> Headers:
        """What goes up: the caller's own without its token, and a key: the user's `secret`, else the server's."""
        kept = [(name, value) for name, value in given if _goes_up(name)]
        kept.append((b"accept-encoding", b"identity"))  # so that usage can be read as it passes
        if self.stand_in and not self.is_real(secret):
            return [*kept, (b"x-api-key", SCRIPTED_KEY.encode())]
        token = None if secret or self.api_key else self.auth_token
        key = secret or self.api_key or token
        if key is None:
            raise CredentialMissing(
                "No key for the model: set an ANTHROPIC credential of your own, or ANTHROPIC_API_KEY of the server."
            )
        if key.startswith(OAUTH_PREFIX):
            return [*_with_beta(kept), (b"authorization", f"Bearer {key}".encode())]
        if token is not None:
            return [*kept, (b"authorization", f"Bearer {token}".encode())]
        return [*kept, (b"x-api-key", key.encode())]


def answer_headers(given: Iterable[tuple[bytes, bytes]]) -> Headers:
    """What comes down: all but what belongs to the connection, or to whoever answers the client."""
    lower = [(name.lower(), value) for name, value in given]
    return [(name, value) for name, value in lower if name not in HOP_BY_HOP | THEIRS]


def _goes_up(name: bytes) -> bool:
    return name not in HOP_BY_HOP | OURS | {b"accept-encoding"} and not name.startswith(FORWARDED)


def _with_beta(headers: Headers) -> Headers:
    """OAuth tokens count only together with their beta, beside those that the agent asks for."""
    asked = [one.strip() for name, value in headers if name == BETA for one in value.decode("latin-1").split(",")]
    betas = ",".join(dict.fromkeys([*filter(None, asked), OAUTH_BETA]))
    return [*((name, value) for name, value in headers if name != BETA), (BETA, betas.encode("latin-1"))]
