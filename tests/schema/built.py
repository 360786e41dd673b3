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


def selection(type_name: str, *, depth: int = 2, only: str | None = None) -> str:
    """Every field of a type, and below it every field of its objects, so many levels down; pages of one object."""
    return _select(BUILT._schema.type_map[type_name], depth, only)


def _select(kind: Any, depth: int, only: str | None = None) -> str:
    fields = ["__typename"]
    if is_abstract_type(kind):
        below = [f"... on {one.name} {{ {_member(one, kind)} }}" for one in BUILT._schema.get_possible_types(kind)]
        return " ".join([*fields, *below]) if depth else " ".join([*fields, *kind.fields])
    for name, definition in kind.fields.items():
        below = get_named_type(definition.type)
        if only not in (None, name):
            continue
        if is_leaf_type(below):
            fields.append(f"{name}{_arguments(definition)}")
        elif is_composite_type(below) and depth:
            fields.append(f"{name}{_arguments(definition)} {{ {_select(below, depth - 1)} }}")
    return " ".join(fields)


def _member(kind: Any, abstract: Any) -> str:
    """What others of the same abstract type have with another type goes by a name of its own."""
    others = BUILT._schema.get_possible_types(abstract)
    fields = []
    for name in _select(kind, 0).split():
        types = {str(one.fields[name].type) for one in others if name in one.fields}
        fields.append(f"{name}{kind.name}: {name}" if len(types) > 1 else name)
    return " ".join(fields)


def _arguments(definition: Any) -> str:
    """A page of one object; and 1 for every number that must be given."""
    required = [f"{name}: 1" for name, one in definition.args.items() if is_required_argument(one)]
    given = required or (["first: 1"] if "first" in definition.args else [])
    return f"({', '.join(given)})" if given else ""


def object_types() -> dict[str, Any]:
    """The types of objects that clients read, without the roots and what mutations answer."""
    roots = {"Query", "Mutation", "Subscription"}
    return {
        name: kind
        for name, kind in BUILT._schema.type_map.items()
        if is_object_type(kind) and not name.startswith("__") and name not in roots and not name.endswith("Payload")
    }
