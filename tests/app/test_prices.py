"""Prices: which entry a model's name finds, and what an answer costs by it."""

import pytest

from app.prices import PRICES, SONNET, Price, Tokens, cost_micro_usd

MILLION = 1_000_000
DEAREST = (15, 75)


def dollars(model, prices=None, **tokens):
    return cost_micro_usd(model, Tokens(**tokens), prices) / MILLION


@pytest.mark.parametrize(
    ("model", "price"),
    [
        ("claude-opus-5-5", (4, 20)),
        ("claude-opus-5", (5, 25)),
        ("claude-opus-4-5-20251101", (5, 25)),
        ("claude-opus-4-1-20250805", (15, 75)),
        ("claude-opus-4-20250514", (15, 75)),
        ("claude-sonnet-4-5", (3, 15)),
        ("claude-sonnet-4-5@20250929", (3, 15)),
        ("claude-sonnet-4-5[1m]", (3, 15)),
        ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", (3, 15)),
        ("anthropic/Claude-Haiku-4-5", (1, 5)),
        ("claude-3-5-haiku-20241022", (0.8, 4)),
        ("glm-4.6", (0.6, 2.2)),
        ("scripted", (3, 15)),
        ("claude-opus-4-9", DEAREST),
        ("claude-sonnet-4-55", DEAREST),
        ("claude-sonnet-5-6-20270101", DEAREST),
        ("glm-4.6v", DEAREST),
        ("glm-4", DEAREST),
        ("gpt-next", DEAREST),
        ("", DEAREST),
    ],
)
def test_a_name_finds_its_price(model, price):
    """Dated and vendors' names find their model; a model that is not listed costs what the dearest does."""
    # A hundred tokens stay under every limit of long prompts.
    found = (cost_micro_usd(model, Tokens(input=100)) / 100, cost_micro_usd(model, Tokens(output=100)) / 100)
    assert found == pytest.approx(price)


def test_cache_has_prices_of_its_own():
    """Reading costs a tenth of the input and writing a quarter more, unless the list says otherwise."""
    assert dollars("claude-sonnet-4-5", cache_read=MILLION) == pytest.approx(0.3)
    assert dollars("claude-sonnet-4-5", cache_write=MILLION) == pytest.approx(3.75)
    assert dollars("claude-opus-5-5", cache_read=MILLION) == pytest.approx(0.2)
    assert dollars("x", {"x": Price(1, 1, cache_read=7, cache_write=9)}, cache_read=MILLION, cache_write=MILLION) == 16


def test_everything_is_added_up():
    """An answer costs the sum of its parts, to the micro-dollar."""
    tokens = Tokens(input=4000, output=240, cache_read=800, cache_write=200)
    assert cost_micro_usd("claude-sonnet-4-5", tokens) == 16_590
    assert cost_micro_usd("claude-sonnet-4-5", Tokens()) == 0


@pytest.mark.parametrize("field", ["input", "cache_read", "cache_write"])
def test_long_prompts_have_their_own_price(field):
    """All of the prompt counts towards the limit, whether it came from the cache or not."""
    short, long = [dollars("claude-haiku-5-5", output=MILLION, **{field: size}) for size in (100_000, 100_001)]
    assert long > 4 * short


def test_own_prices_come_first():
    """A setting overrides the list by prefix, and can name what the list does not."""
    own = {"claude-sonnet": Price(1, 2), "house-model": Price(20, 100), "claude-haiku-5-5": Price(2, 2)}
    assert dollars("claude-sonnet-4-5", own, input=MILLION) == 3
    assert dollars("claude-sonnet-latest", own, input=MILLION) == 1
    assert dollars("house-model-2", own, input=MILLION) == dollars("unknown", own, input=MILLION) == 20
    assert dollars("claude-haiku-5-5", own, input=MILLION) == 2
    assert dollars("claude-sonnet-4-5", {"claude-sonnet-4-5": Price(1, 2)}, input=MILLION) == 1


def test_no_entry_is_free():
    """A price of nothing would be a budget without end."""
    assert all(price.input > 0 and price.output > 0 for price in PRICES.values())
    assert PRICES["scripted"] == SONNET
