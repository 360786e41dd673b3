"""What the schema itself says: its root fields with their rules, and documents written from its types."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from graphql import (
    get_named_type,
    is_abstract_type,
    is_composite_type,
    is_leaf_type,
    is_object_type,
    is_required_argument,
)
from strawberry.types.base import get_object_definition

import schema
from app.auth import Rule
from app.inputs import camel

BUILT = schema.build()


@dataclass(frozen=True)
class RootField:
    """One entry point, with the argument, or the input's field, that its rule is about."""

    operation: str  # query, mutation or subscription
    name: str
    rule: Rule

    @property
    def of(self) -> str:
        return camel(self.rule.of or "")

    @cached_property
    def definition(self) -> Any:
        return getattr(BUILT._schema, f"{self.operation}_type").fields[self.name]

    def document(self, fields: str = "__typename") -> str:
        """All of its required arguments as variables of their own names."""
        taken = {
            name: argument
            for name, argument in self.definition.args.items()
            if is_required_argument(argument) or name == self.of
        }
        declared = ", ".join(f"${name}: {argument.type}" for name, argument in taken.items())
        given = ", ".join(f"{name}: ${name}" for name in taken)
        opening = f"{self.operation}({declared})" if declared else self.operation
        call = f"{self.name}({given})" if given else self.name
        return f"{opening} {{ {call} {{ {fields} }} }}"


def root_fields() -> list[RootField]:
    return [
        RootField(kind, BUILT.config.name_converter.get_graphql_name(one), one.metadata["rule"])
        for kind in ("query", "mutation", "subscription")
        for one in get_object_definition(getattr(BUILT, kind), strict=True).fields
    ]


def selection(type_name: str, *, depth: int = 2) -> str:
    """Every field of a type, and below it every field of its objects, so many levels down; pages of one object."""
    return _select(BUILT._schema.type_map[type_name], depth)


def _select(kind: Any, depth: int) -> str:
    fields = ["__typename"]
    if is_abstract_type(kind):
        below = [f"... on {one.name} {{ {_select(one, 0)} }}" for one in BUILT._schema.get_possible_types(kind)]
        return " ".join([*fields, *below]) if depth else " ".join([*fields, *kind.fields])
    for name, definition in kind.fields.items():
        of = get_named_type(definition.type)
        if is_leaf_type(of):
            fields.append(name)
        elif is_composite_type(of) and depth:
            page = "(first: 1)" if "first" in definition.args else ""
            fields.append(f"{name}{page} {{ {_select(of, depth - 1)} }}")
    return " ".join(fields)


def object_types() -> dict[str, Any]:
    """The types of objects that clients read, without the roots and what mutations answer."""
    roots = {"Query", "Mutation", "Subscription"}
    return {
        name: kind
        for name, kind in BUILT._schema.type_map.items()
        if is_object_type(kind) and not name.startswith("__") and name not in roots and not name.endswith("Payload")
    }
