"""What work has cost, as clients see it."""

from typing import Any

import strawberry

from app import usage
from resolvers.context import Context
from schema.fields import field
from schema.rules import reached

LARGEST_INT = 2**31 - 1
MOST = f"; {LARGEST_INT:,} stands for that and more, which GraphQL's Int cannot say"


def _count(name: str, description: str) -> Any:
    def counted(context: Context, of: usage.Usage) -> int:
        return int(min(getattr(of, name), LARGEST_INT))

    return field(counted, int, f"{description}{MOST}.")


@reached("What work has cost so far.", shared=True)
class Usage:
    input_tokens = _count("input_tokens", "Tokens that the model read afresh")
    output_tokens = _count("output_tokens", "Tokens that the model wrote")
    cache_read_tokens = _count("cache_read_tokens", "Tokens that the model read from its cache")
    cache_write_tokens = _count("cache_write_tokens", "Tokens that the model wrote into its cache")
    cost_usd: float = strawberry.field(description="What the tokens cost, in US dollars by list prices.")
    sandbox_seconds: float = strawberry.field(description="How long sandboxes have run, in seconds, added up.")
