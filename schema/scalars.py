"""The scalars beyond GraphQL's own."""

import re
from datetime import UTC, datetime
from typing import Any, NewType

import strawberry

RFC_3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?(Z|[+-]\d\d:\d\d)", re.ASCII | re.IGNORECASE)


def _parsed(value: Any) -> datetime:
    """Only a moment with its offset says when it is."""
    if not isinstance(value, str):
        raise ValueError("A DateTime is written as text.")  # noqa: TRY004 - GraphQL's coercion reads ValueError
    if not RFC_3339.fullmatch(value):
        raise ValueError("A DateTime is written by RFC 3339 with its offset, e.g. 2026-01-31T12:00:00Z.")
    moment = datetime.fromisoformat(value)
    return moment.astimezone(UTC)


# What stands in the types; any value that JSON has.
JSON = NewType("JSON", object)

Json = strawberry.scalar(
    name="JSON",
    description="Any value that JSON has: an object, a list, text, a number, true, false or null.",
    parse_value=lambda value: value,
    serialize=lambda value: value,
)

DateTime = strawberry.scalar(
    name="DateTime",
    description="A moment in UTC by RFC 3339, e.g. `2026-01-31T12:00:00.000000Z`.",
    specified_by_url="https://scalars.graphql.org/andimarek/date-time",
    parse_value=_parsed,
    serialize=lambda moment: moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
)
