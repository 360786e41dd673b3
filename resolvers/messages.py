"""Answers about what is said to agents."""

from typing import Any
from uuid import UUID

from app import ids, messages, paging
from app.models import Message, Sandbox
from app.transactions import Transaction
from resolvers.context import Context

Given = dict[str, Any]


async def messages_of(context: Context, sandbox: Sandbox, **page: Any) -> paging.Page[Message]:
    found: paging.Page[Message] = await context.loaders.message_pages.load((sandbox.id, paging.Arguments(**page)))
    return found


async def sandbox_of(context: Context, message: Message) -> Sandbox:
    sandbox: Sandbox = await context.loaders.sandboxes.load(message.sandbox_id)
    return sandbox


async def inject(tx: Transaction, given: Given) -> Message:
    optional = {name: given[name] for name in ("kind", "expires_at") if given.get(name) is not None}
    return await messages.inject(
        tx, ids.require(given["sandbox_id"], "sandbox", "sandboxId"), body=given["body"], **optional
    )


async def cancel(tx: Transaction, given: Given) -> Message:
    return await messages.cancel(tx, _key(given["message_id"]))


def _key(public_id: str) -> UUID:
    return ids.require(public_id, "message", "messageId")
