"""People, service accounts and their access tokens, as clients see them."""

import enum
from datetime import datetime
from typing import Any

import strawberry

from app import auth, enums, models
from resolvers import credentials
from resolvers import sandboxes as resolve_sandboxes
from resolvers import users as resolve
from schema.credentials import Credential
from schema.fields import described, field, later, mutation, query
from schema.nodes import Node, node, public_id
from schema.payloads import ERRORS, UserError
from schema.rules import reached

AuthorKind = described(enums.PrincipalKind, "Who does something.", name="AuthorKind")


@strawberry.enum(description="Who may ask.")
class PrincipalKind(enum.Enum):
    USER = strawberry.enum_value("user", description="A person.")
    SERVICE = strawberry.enum_value("service", description="An account that belongs to a program.")
    SANDBOX = strawberry.enum_value("sandbox", description="The worker in one sandbox.")


@node(models.User, "A person, or a service account that belongs to a program.")
class User(Node):
    id = public_id("user")
    name: str = strawberry.field(description="What others see.")
    email: str | None = strawberry.field(description="The address that names the account.")
    admin: bool = strawberry.field(description="May make users and see the whole server's health.")
    created_at: datetime = strawberry.field(description="When the account was made.")


@node(models.AccessToken, "A secret for programs that act as a user. Its text was shown once, when it was made.")
class AccessToken(Node):
    id = public_id("token")
    name: str = strawberry.field(description="What its owner called it.")
    created_at: datetime = strawberry.field(description="When it was made.")
    expires_at: datetime | None = strawberry.field(description="From when on it is refused; null is never.")
    last_used_at: datetime | None = strawberry.field(description="When it was last used, to the minute.")


def _kind(context: Any, principal: auth.Principal) -> PrincipalKind:
    return PrincipalKind(principal.kind.value)


@reached("Who is asking: a person, a service account, or a sandbox's own worker.")
class Viewer:
    kind = field(_kind, PrincipalKind, "What sort of caller this is.")
    user = field(resolve.user_of_viewer, User | None, "The account, when it is a person or a service.")
    credentials = field(
        credentials.of_viewer, list[Credential], "What the server holds for the account, one of each kind at most."
    )
    sandbox = field(
        resolve_sandboxes.sandbox_of_viewer,
        later("Sandbox", "schema.sandboxes") | None,
        "The sandbox, when it is a sandbox's own worker.",
    )
    access_tokens = field(
        resolve.tokens_of_viewer, list[AccessToken], "The account's access tokens that still count, oldest first."
    )


@strawberry.type
class UserQuery:
    viewer = query(resolve.viewer, Viewer, "Who is asking.", rule=auth.ANYBODY)


@strawberry.input(description="A new account.")
class CreateUserInput:
    email: str = strawberry.field(description="The address that names the account.")
    name: str = strawberry.field(description="What others see.")
    admin: bool | None = strawberry.field(default=False, description="May make users and see the server's health.")
    idempotency_key: str | None = strawberry.field(
        default=strawberry.UNSET, description="The same key with the same input makes one account."
    )


@strawberry.input(description="Whom the link signs in.")
class CreateSignInLinkInput:
    user_id: strawberry.ID = strawberry.field(description="The account's id.")


@strawberry.input(description="A new access token for the caller.")
class CreateAccessTokenInput:
    name: str = strawberry.field(description="What it is for.")
    expires_at: datetime | None = strawberry.field(
        default=strawberry.UNSET, description="From when on it is refused; never when left out."
    )


@strawberry.input(description="Which token to revoke.")
class RevokeAccessTokenInput:
    token_id: strawberry.ID = strawberry.field(description="The token's id.")


def _sign_in_url(context: Any, payload: "UserPayload") -> str | None:
    if payload.sign_in_secret is None:
        return None
    return f"{context.services.address}/sign-in?token={payload.sign_in_secret}"


@reached("The account.")
class UserPayload:
    sign_in_secret: strawberry.Private[str | None] = None
    user: User | None = strawberry.field(default=None, description="The account, unless there are errors.")
    sign_in_url = field(
        _sign_in_url, str | None, "Signs a browser in, once, within ten minutes. A repeated request has none."
    )
    errors: list[UserError] = strawberry.field(default_factory=list, description=ERRORS)


@reached("The access token.")
class AccessTokenPayload:
    access_token: AccessToken | None = strawberry.field(default=None, description="The token, unless there are errors.")
    token: str | None = strawberry.field(default=None, description="Its text. Shown this once.")
    errors: list[UserError] = strawberry.field(default_factory=list, description=ERRORS)


@strawberry.type
class UserMutation:
    create_user = mutation(
        resolve.create_user,
        UserPayload,
        "For admins; answers a link with which the person signs in the first time.",
        takes=CreateUserInput,
        rule=auth.ADMIN,
        answers="user",
    )
    create_sign_in_link = mutation(
        resolve.create_sign_in_link,
        UserPayload,
        "For admins; a new link for a person who has none left.",
        takes=CreateSignInLinkInput,
        rule=auth.ADMIN,
        answers="user",
    )
    create_access_token = mutation(
        resolve.create_access_token,
        AccessTokenPayload,
        "A new access token for the caller's own account.",
        takes=CreateAccessTokenInput,
        rule=auth.SIGNED_IN,
        answers="access_token",
    )
    revoke_access_token = mutation(
        resolve.revoke_access_token,
        AccessTokenPayload,
        "The token counts no more from now on, for open subscriptions too.",
        takes=RevokeAccessTokenInput,
        rule=auth.owner("token_id"),
        answers="access_token",
    )
