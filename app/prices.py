"""What tokens cost: list prices by model, in US dollars per million, which is micro-dollars per token."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

CACHE_READ_RATIO = 0.1  # of the input price, where the list has no price of its own
CACHE_WRITE_RATIO = 1.25  # for five minutes; an hour costs twice the input price, and an answer's sum does not tell
OTHER_MODEL = re.compile(r"[a-z0-9]|[-.]\d{1,2}(?!\d)")  # what follows makes it `opus-4-9`, not a dated `opus-4`


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """What one answer of a model used. `input` leaves out what was read from the cache or written to it."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0

    @property
    def prompt(self) -> int:
        return self.input + self.cache_read + self.cache_write

    def __sub__(self, other: "Tokens") -> "Tokens":
        return Tokens(
            input=self.input - other.input,
            output=self.output - other.output,
            cache_read=self.cache_read - other.cache_read,
            cache_write=self.cache_write - other.cache_write,
        )


@dataclass(frozen=True, slots=True)
class Price:
    """Dollars per million tokens."""

    input: float
    output: float
    cache_read: float | None = None
    cache_write: float | None = None


SONNET = Price(3, 15)
PRICES: Mapping[str, Price] = {
    "claude-fable-5": Price(10, 50),
    "claude-fable-5-1": Price(10, 50, cache_read=0.25),
    "claude-fable-5-2": Price(8, 40),
    "claude-mythos-5": Price(10, 50),
    "claude-mythos-5-1": Price(10, 50, cache_read=0.25),
    "claude-mythos-5-2": Price(8, 40),
    "claude-opus-5-5": Price(4, 20, cache_read=0.2),
    "claude-opus-5": Price(5, 25),
    "claude-opus-4-8": Price(5, 25),
    "claude-opus-4-7": Price(5, 25),
    "claude-opus-4-6": Price(5, 25),
    "claude-opus-4-5": Price(5, 25),
    "claude-opus-4-1": Price(15, 75),
    "claude-opus-4-0": Price(15, 75),
    "claude-opus-4": Price(15, 75),
    "claude-sonnet-5-5": Price(2, 10, cache_read=0.1),
    "claude-sonnet-5": Price(2, 10),
    "claude-sonnet-4-6": SONNET,
    "claude-sonnet-4-5": SONNET,
    "claude-sonnet-4-0": SONNET,
    "claude-sonnet-4": SONNET,
    "claude-haiku-5-5": Price(0.1, 0.5),
    "claude-haiku-4-5": Price(1, 5),
    "claude-3-7-sonnet": SONNET,
    "claude-3-5-sonnet": SONNET,
    "claude-3-5-haiku": Price(0.8, 4),
    "glm-4.6": Price(0.6, 2.2, cache_read=0.11),
    "scripted": SONNET,  # it costs nothing; with a price a budget can be tried without a key
}
LONG_PROMPTS: Mapping[str, tuple[int, Price]] = {"claude-haiku-5-5": (100_000, Price(0.5, 2.5))}


def cost_micro_usd(model: str, tokens: Tokens, prices: Mapping[str, Price] | None = None) -> int:
    """The cost of one answer. `prices` come before the list's own; a model in neither costs what the dearest does."""
    price = _price(model, tokens, prices or {})
    read = price.input * CACHE_READ_RATIO if price.cache_read is None else price.cache_read
    write = price.input * CACHE_WRITE_RATIO if price.cache_write is None else price.cache_write
    return round(
        tokens.input * price.input
        + tokens.output * price.output
        + tokens.cache_read * read
        + tokens.cache_write * write
    )


def _price(model: str, tokens: Tokens, own: Mapping[str, Price]) -> Price:
    name = model.lower().rpartition("/")[2].rpartition("anthropic.")[2]  # as other vendors write it
    for listed in (own, PRICES):
        found = _key(name, listed)
        if found is None:
            continue
        limit, long_price = LONG_PROMPTS.get(found, (0, listed[found]))
        return long_price if listed is PRICES and tokens.prompt > limit else listed[found]
    return max((*PRICES.values(), *own.values()), key=lambda price: (price.output, price.input))


def _key(name: str, listed: Mapping[str, Price]) -> str | None:
    """The longest entry that this name is, or is a dated or marked form of."""
    fits = [key for key in listed if name.startswith(key) and not OTHER_MODEL.match(name, len(key))]
    return max(fits, key=len, default=None)
