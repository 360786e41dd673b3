"""How reads become batches: what all objects of an answer need of one kind is asked for together."""

from collections.abc import Awaitable, Callable, ItemsView, Mapping, Sequence
from typing import Any

from strawberry.dataloader import DataLoader

from app.db import Database

Loader = DataLoader[Any, Any]


def mapped(
    db: Database,
    read: Callable[..., Awaitable[Mapping[Any, Any]]],
    *,
    missing: Callable[[], Any] = lambda: None,
) -> Loader:
    """Reads all keys in one session; what `read` says nothing about is `missing`."""

    async def load(keys: list[Any]) -> list[Any]:
        async with db.reading() as session:
            found = await read(session, keys)
        return [found[key] if key in found else missing() for key in keys]

    return Loader(load)


def grouped(keys: Sequence[Any], by: Callable[[Any], Any]) -> ItemsView[Any, list[Any]]:
    groups: dict[Any, list[Any]] = {}
    for key in keys:
        groups.setdefault(by(key), []).append(key)
    return groups.items()
