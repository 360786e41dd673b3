"""Deny by default: nothing gets into the schema that does not declare who may read it."""

from collections.abc import Callable
from typing import TypeVar, dataclass_transform

import strawberry
from graphql import GraphQLObjectType
from strawberry.types.base import StrawberryObjectDefinition

from app.auth import REACHED, Rule
from app.errors import AppError
from schema.sharing import Shared

Kind = TypeVar("Kind", bound=type)
SHARED = (Shared(),)
RULE = "rule"  # in a field's metadata
RULE_OF_FIELDS = "__rule_of_fields__"  # on a type, for its plain fields


@dataclass_transform(kw_only_default=True, field_specifiers=(strawberry.field,))
def reached(description: str, *, shared: bool = False) -> Callable[[Kind], Kind]:
    """An object type: whoever may hold the object may read its fields; a shared one is the same for all of them."""

    def decorate(kind: Kind) -> Kind:
        setattr(kind, RULE_OF_FIELDS, REACHED)
        return strawberry.type(kind, description=description, directives=SHARED if shared else ())

    return decorate


def require_rules(built: strawberry.Schema) -> None:
    """Refuse a schema in which a field declares no rule, neither itself nor through its type."""
    # Strawberry has no public name for the graphql-core schema that it builds; its version is pinned.
    for kind in built._schema.type_map.values():  # noqa: SLF001
        definition = kind.extensions.get("strawberry-definition")
        if not isinstance(kind, GraphQLObjectType) or not isinstance(definition, StrawberryObjectDefinition):
            continue
        for field in definition.fields:
            rule = field.metadata.get(RULE) or getattr(definition.origin, RULE_OF_FIELDS, None)
            if not isinstance(rule, Rule):
                raise AppError(f"The field {kind.name}.{field.python_name} declares no rule.")
