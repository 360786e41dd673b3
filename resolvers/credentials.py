"""Answers about what the server holds for a user."""

from collections.abc import Sequence
from typing import Any

from app import credentials
from app.auth import Principal
from app.models import Credential
from app.transactions import Transaction
from resolvers.context import Context, Services

Given = dict[str, Any]


async def of_viewer(context: Context, principal: Principal) -> Sequence[Credential]:
    async with context.services.db.reading() as session:
        return await credentials.of_user(session, principal.id)


async def set_credential(tx: Transaction, given: Given, *, services: Services) -> Credential:
    return await credentials.keep(tx, services.keys, given["kind"], given["secret"])


async def delete_credential(tx: Transaction, given: Given) -> Credential:
    return await credentials.forget(tx, given["kind"])
