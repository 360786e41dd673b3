"""Metering: whatever the pieces, the count is the same; whatever the input, it is taken."""

import json
import random
import tracemalloc

import pytest

from app.metering import LARGEST_BODY_BYTES, LONGEST_LINE_BYTES, MOST_TOKENS, Meter
from app.prices import Tokens

USAGE = {"input_tokens": 25, "cache_creation_input_tokens": 3, "cache_read_input_tokens": 7, "output_tokens": 1}
COUNTED = Tokens(input=25, output=90, cache_read=7, cache_write=3)


def event(kind, **fields):
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


def start(usage=USAGE, **more):
    return event("message_start", message={"type": "message", "model": "claude-x", "usage": usage, **more})


def delta(**usage):
    return event("message_delta", delta={"stop_reason": "end_turn"}, usage=usage)


def said(text):
    return event("content_block_delta", index=0, delta={"type": "text_delta", "text": text})


STOP = event("message_stop")
STREAM = start() + event("ping") + said('Hé: "type": "message_stop"\r\n') + delta(output_tokens=40)
STREAM += delta(output_tokens=90) + STOP
WHOLE = json.dumps(
    {"model": "claude-x", "type": "message", "usage": {**USAGE, "output_tokens": 90}, "content": []}, indent=1
).encode()


def metered(*chunks):
    meter = Meter()
    for chunk in chunks:
        meter.feed(chunk)
    return meter


def told(meter):
    return meter.usage, meter.model, meter.ended


def pieces(data, rng):
    """The data, cut anywhere; some pieces are empty."""
    cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.randrange(30)))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]


@pytest.mark.parametrize("answer", [STREAM, STREAM.replace(b"\n", b"\r\n"), b"\n " + WHOLE + b"\n", WHOLE])
def test_borders_do_not_matter(answer):
    """However an answer is cut into pieces, and whenever somebody asks, the count in the end is the same."""
    rng = random.Random(3)
    for _ in range(300):
        meter = Meter()
        for piece in pieces(answer, rng):
            meter.feed(piece)
            if rng.random() < 0.3:
                told(meter)
        assert told(meter) == (COUNTED, "claude-x", True)
    assert told(metered(*(bytes([byte]) for byte in answer))) == (COUNTED, "claude-x", True)


def test_counts_as_it_flows():
    """What was told so far is known at once, also when the rest never comes."""
    meter = metered(start())
    assert told(meter) == (Tokens(input=25, output=1, cache_read=7, cache_write=3), "claude-x", False)
    meter.feed(delta(output_tokens=40))
    assert meter.usage.output == 40
    assert not meter.ended
    meter.feed(STOP)
    assert meter.ended


def test_words_are_estimated_until_they_are_counted():
    """Four bytes are a token, whichever way they are said; the answer's own count comes in their place."""
    block = {"type": "input_json_delta", "partial_json": "é" * 20}
    meter = metered(start(), said("x" * 399), event("content_block_delta", delta=block))
    assert meter.usage.output == 110
    meter.feed(event("content_block_delta", delta={"type": "thinking_delta", "thinking": "y" * 40}))
    assert meter.usage.output == 120
    meter.feed(delta(output_tokens=90))
    assert meter.usage == COUNTED
    meter.feed(said("z" * 8))
    assert meter.usage.output == 92


@pytest.mark.parametrize("piece", [{"text": 7}, {"text": None}, [], None, "text", {"signature": "x" * 99}])
def test_what_is_no_word_is_not_estimated(piece):
    """And no estimate is below what was told."""
    meter = metered(start({"output_tokens": 5}), said("x"), event("content_block_delta", delta=piece))
    assert meter.usage.output == 5
    assert metered(start(), said("x" * 40), delta(output_tokens=None)).usage.output == 10


def test_the_largest_count_holds():
    """Counts are cumulative; a provider that knows the input only in the end, or repeats it as 0, is understood."""
    late = metered(start({"input_tokens": 0, "output_tokens": 0}), delta(input_tokens=50, output_tokens=9))
    assert late.usage == Tokens(input=50, output=9)
    zero = metered(start(), delta(input_tokens=0, output_tokens=90))
    assert zero.usage == COUNTED


def test_an_error_is_an_end():
    """An error in the stream, or instead of it, ends the answer; what was told before it stays."""
    broken = metered(start(), event("error", error={"type": "overloaded_error", "message": "x"}))
    assert broken.ended
    assert broken.usage.input == 25
    assert told(metered(b'{"type": "error", "error": {}}')) == (Tokens(), "", True)


@pytest.mark.parametrize(
    "count", [-1, 1.5, "9", None, True, [], {}, MOST_TOKENS + 1, 1 << 80], ids=lambda count: repr(count)[:8]
)
def test_what_is_no_count_counts_nothing(count):
    """Only whole numbers of a sane size are taken."""
    meter = metered(start(dict.fromkeys(USAGE, count)), delta(output_tokens=count), STOP)
    assert told(meter) == (Tokens(), "claude-x", True)


@pytest.mark.parametrize(
    "junk",
    [
        b'data: "message_start"\n',
        b'data: {"type": "message_start"}\n',
        b'data: {"type": "message_start", "message": []}\n',
        b'data: {"type": "message_start", "message": {"usage": 7, "model": 7}}\n',
        b'data: {"type": "message_delta", "usage": null}\n',
        b'data: {"type": ["message_delta"]}\n',
        b'data: {"type": "message_start", "message": {\n',
        b'data: ["message_start"]\n',
        b"data: \xff\xfe message_start\n",
        b'data: "message_' + b"[" * 100_000 + b"\n",
        b": a comment\n\n\n\r\n",
        b"\x00",
    ],
)
def test_junk_is_passed_over(junk):
    """What makes no sense raises nothing and hides nothing that comes after it."""
    meter = metered(b"\n", event("ping"), junk, b"\n", STREAM)
    assert told(meter) == (COUNTED, "claude-x", True)
    assert told(metered(b"{" + junk)) == (Tokens(), "", False)


def test_random_bytes_raise_nothing():
    """Damaged answers are taken like any other."""
    rng = random.Random(5)
    for _ in range(500):
        data = bytearray(rng.choice([STREAM, WHOLE]))
        for _ in range(rng.randrange(1, 20)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        meter = metered(*pieces(bytes(data), rng))
        assert min(meter.usage.input, meter.usage.output) >= 0


@pytest.mark.parametrize("size", [LONGEST_LINE_BYTES + 1, 8 * LONGEST_LINE_BYTES])
@pytest.mark.parametrize("piece", [7, 1000, 1 << 30])
def test_a_line_too_long_is_skipped(size, piece):
    """It is skipped whole, in pieces or at once, and what follows is counted."""
    line = b'data: {"type": "message_stop", "pad": "' + b"x" * size + b'"}\n'
    answer = start() + line + delta(output_tokens=90)
    meter = metered(*(answer[at : at + piece] for at in range(0, len(answer), piece)))
    assert told(meter) == (COUNTED, "claude-x", False)
    meter.feed(STOP)
    assert meter.ended


@pytest.mark.parametrize("first", [b"data: ", b"{"])
def test_memory_is_bounded(first):
    """An answer without end is not kept."""
    meter = metered(first)
    piece = b'"' * 10_000
    tracemalloc.start()
    try:
        for _ in range(3000):
            meter.feed(piece)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 2 * LARGEST_BODY_BYTES
    assert told(meter) == (Tokens(), "", False)
