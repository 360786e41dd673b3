"""Answers about people, accounts and their tokens."""

from collections.abc import Sequence
from typing import Any

from app import ids, tokens, users
from app.auth import Principal
from app.enums import PrincipalKind
from app.errors import NotFound
from app.models import AccessToken, User
from app.transactions import Transaction
from resolvers.context import Context

Given = dict[str, Any]


def viewer(context: Context, root: Any) -> Principal:
    return context.principal


async def user_of_viewer(context: Context, principal: Principal) -> User | None:
    if principal.kind not in (PrincipalKind.USER, PrincipalKind.SERVICE):
        return None
    user: User = await context.loaders.users.load(principal.id)
    return user


async def tokens_of_viewer(context: Context, principal: Principal) -> Sequence[AccessToken]:
    async with context.services.db.reading() as session:
        return await tokens.of_user(session, principal.id)


async def create_user(tx: Transaction, given: Given) -> Given:
    user = await users.create(tx, email=given["email"], name=given["name"], admin=given.get("admin") or False)
    return {"user": user, "sign_in_secret": await tokens.create_sign_in(tx, user)}


async def create_sign_in_link(tx: Transaction, given: Given) -> Given:
    found = await users.by_ids(tx.session, [ids.require(given["user_id"], "user", "userId")])
    if not found:
        raise NotFound(path=["userId"])
    return {"user": found[0], "sign_in_secret": await tokens.create_sign_in(tx, found[0])}


async def create_access_token(tx: Transaction, given: Given) -> Given:
    [user] = await users.by_ids(tx.session, [tx.principal.id])
    token, secret = await tokens.create(tx, user, name=given["name"], expires_at=given.get("expires_at"))
    return {"access_token": token, "token": secret}


async def revoke_access_token(tx: Transaction, given: Given) -> AccessToken:
    token_id = ids.require(given["token_id"], "token", "tokenId")
    return await tokens.revoke(tx, token_id, of_user=tx.principal.id)
