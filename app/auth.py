"""Who calls, and what they may do: one principal type, one authentication and one authorisation for every transport."""

import enum
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID


class PrincipalKind(enum.StrEnum):
    USER = "user"  # a person
    SERVICE = "service"  # an account that belongs to a program
    SANDBOX = "sandbox"  # the worker in one sandbox, for one attempt
    GUARDIAN = "guardian"  # the watcher inside this server
    SYSTEM = "system"  # this server itself, and the command line on its machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    kind: PrincipalKind
    id: UUID
    name: str
    admin: bool = False
    token_id: UUID | None = None
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """What a connection brought, whichever transport it came over."""

    bearer: str | None = None
    cookie: str | None = None
    origin_allowed: bool = False  # the Origin header is there and on the list
    marked: bool = False  # the header (on a socket: the connection_init key) that no foreign page can send
