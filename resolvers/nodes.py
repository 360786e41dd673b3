"""Any object by its id: what an id may name is what the caller may see."""

import asyncio
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from app import auth, ids
from app.errors import BadUserInput, NotFound
from resolvers.context import Context

IDS_AT_ONCE = 100


async def node(context: Context, root: Any, id: str) -> Any:
    decoded = ids.decode(id)
    if decoded is None:
        raise NotFound(path=["id"])
    return await load(context, *decoded)


async def nodes(context: Context, root: Any, ids: Sequence[str]) -> list[Any]:
    """One answer for each id, in their order; what cannot be seen is null with its own error."""
    if len(ids) > IDS_AT_ONCE:
        raise BadUserInput(f"`ids` takes {IDS_AT_ONCE} at most.", path=["ids"])
    async with context.services.db.reading() as session:
        visible = await auth.roles_for(session, context.principal, ids)
    return await asyncio.gather(*(_loaded(context, one) if one in visible else _missing() for one in ids))


async def load(context: Context, prefix: str, key: UUID) -> Any:
    loaders = context.loaders
    loader = {
        "project": loaders.projects,
        "ticket": loaders.tickets,
        "task": loaders.tasks,
        "sandbox": loaders.sandboxes,
        "message": loaders.messages,
        "user": loaders.users,
        "token": loaders.tokens,
    }.get(prefix)
    if loader is None:
        raise NotFound(path=["id"])
    return await loader.load(key)


async def _loaded(context: Context, public_id: str) -> Any:
    return await node(context, None, public_id)


async def _missing() -> NotFound:
    return NotFound(path=["ids"])
