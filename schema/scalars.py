"""The scalars beyond GraphQL's own."""

import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NewType

import strawberry
from graphql import (
    EnumValueNode,
    FloatValueNode,
    GraphQLError,
    IntValueNode,
    ListValueNode,
    ObjectValueNode,
    ValueNode,
    value_from_ast_untyped,
)

RFC_3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?(Z|[+-]\d\d:\d\d)", re.ASCII | re.IGNORECASE)

LONGEST_DIGITS = 4_000  # Python reads a few more


def _parsed(value: Any) -> datetime:
    """Only a moment with its offset says when it is."""
    if not isinstance(value, str):
        raise ValueError("A DateTime is written as text.")  # noqa: TRY004 - GraphQL's coercion reads ValueError
    if not RFC_3339.fullmatch(value):
        raise ValueError("A DateTime is written by RFC 3339 with its offset, e.g. 2026-01-31T12:00:00Z.")
    moment = datetime.fromisoformat(value)
    return moment.astimezone(UTC)


def _parsed_literal(node: ValueNode, variables: Mapping[str, Any] | None = None) -> Any:
    """What a document spells out is held to what its variables are: JSON has no names, and every number ends."""
    _require_json(node)
    return value_from_ast_untyped(node, dict(variables) if variables else None)


def _require_json(node: ValueNode) -> None:
    if isinstance(node, EnumValueNode):
        raise GraphQLError(f"JSON has no {node.value}; a text stands in quotes.", node)
    if isinstance(node, FloatValueNode) and not math.isfinite(float(node.value)):
        raise GraphQLError(f"{node.value} is larger than any number in JSON.", node)
    if isinstance(node, IntValueNode) and len(node.value) > LONGEST_DIGITS:
        raise GraphQLError(f"A whole number has {LONGEST_DIGITS:,} digits at most.", node)
    for inner in _parts(node):
        _require_json(inner)


def _parts(node: ValueNode) -> Sequence[ValueNode]:
    if isinstance(node, ObjectValueNode):
        return [field.value for field in node.fields]
    return node.values if isinstance(node, ListValueNode) else ()


# What stands in the types; any value that JSON has.
JSON = NewType("JSON", object)

Json = strawberry.scalar(
    name="JSON",
    description="Any value that JSON has: an object, a list, text, a number, true, false or null.",
    parse_value=lambda value: value,
    parse_literal=_parsed_literal,
    serialize=lambda value: value,
)

DateTime = strawberry.scalar(
    name="DateTime",
    description="A moment in UTC by RFC 3339, e.g. `2026-01-31T12:00:00.000000Z`.",
    specified_by_url="https://scalars.graphql.org/andimarek/date-time",
    parse_value=_parsed,
    serialize=lambda moment: moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
)
