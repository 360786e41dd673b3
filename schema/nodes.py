"""Objects that have an id: how the id is written, and how a row finds its type."""

from collections.abc import Callable
from typing import Any, TypeVar

import strawberry

from app import auth, ids
from resolvers import nodes as resolve
from schema.fields import Argument, field, query
from schema.rules import reached

Kind = TypeVar("Kind", bound=type)


@strawberry.interface(description="An object with an id that stays the same for ever.")
class Node:
    id: strawberry.ID = strawberry.field(description="Its id: opaque, and the same wherever the object appears.")


def public_id(prefix: str) -> Any:
    def written(context: Any, row: Any) -> str:
        return ids.encode(prefix, row.id)

    return field(written, strawberry.ID, "Its id: opaque, and the same wherever the object appears.")


def node(row: type, description: str) -> Callable[[Kind], Kind]:
    """A type whose objects are rows of this class."""

    def decorate(kind: Kind) -> Kind:
        kind.is_type_of = staticmethod(lambda found, _info: isinstance(found, row))  # type: ignore[attr-defined]
        return reached(description)(kind)

    return decorate


ID = {"id": Argument(strawberry.ID, "The object's id.")}


@strawberry.type
class NodeQuery:
    node = query(resolve.node, Node | None, "Any object by its id.", rule=auth.viewer("id"), **ID)
    nodes = query(
        resolve.nodes,
        list[Node | None],
        "Several objects by their ids, in the same order; null with an error where there is none.",
        rule=auth.SIGNED_IN,
        ids=Argument(list[strawberry.ID], "The objects' ids, 100 at most."),
    )
