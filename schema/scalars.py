"""The scalars beyond GraphQL's own."""

from datetime import UTC, datetime
from typing import Any

import strawberry


def _parsed(value: Any) -> datetime:
    """Only a moment with its offset says when it is."""
    if not isinstance(value, str):
        raise ValueError("A DateTime is written as text.")  # noqa: TRY004 - GraphQL's coercion reads ValueError
    moment = datetime.fromisoformat(value)
    if moment.tzinfo is None:
        raise ValueError("A DateTime needs its offset, e.g. Z.")
    return moment.astimezone(UTC)


DateTime = strawberry.scalar(
    name="DateTime",
    description="A moment in UTC by RFC 3339, e.g. `2026-01-31T12:00:00.000000Z`.",
    specified_by_url="https://scalars.graphql.org/andimarek/date-time",
    parse_value=_parsed,
    serialize=lambda moment: moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
)
