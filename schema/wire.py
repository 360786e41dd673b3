"""JSON at the border: strict about what comes in, never failing on what goes out."""

import json
import math
from dataclasses import dataclass
from typing import Any, NoReturn

import orjson

NESTING = 100


@dataclass(frozen=True, slots=True)
class Answer:
    """The bytes of an answer, ready for any transport."""

    body: bytes
    cursor: str | None = None
    errors: list[dict[str, Any]] | None = None  # why nothing was executed; the body has no `data` then


class NotJson(ValueError):
    """The text is not JSON, or nests deeper than anything a client has reason to send."""


def decode(text: bytes | str) -> Any:
    """Read JSON. Lone surrogates survive as they are, so that a field can refuse them by its own name."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        value = _decode_slowly(text)
    if _opened(text) > NESTING and _nests_deeper_than(value, NESTING):
        raise NotJson(f"The JSON nests deeper than {NESTING} levels.")
    return value


def encode(value: Any) -> bytes:
    """Write JSON. Raises ValueError for a value that JSON cannot carry."""
    try:
        # What orjson returns holds on to the four kilobytes that it began with, and answers are kept.
        return bytes(memoryview(orjson.dumps(value)))
    except TypeError:
        return _encode_slowly(value)


def _decode_slowly(text: bytes | str) -> Any:
    try:
        decoded = text.decode() if isinstance(text, bytes) else text
        return json.loads(decoded, parse_constant=_refuse_constant, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise NotJson("The text is not JSON.") from error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(digits)
    return number


def _opened(text: bytes | str) -> int:
    if isinstance(text, bytes):
        return text.count(b"[") + text.count(b"{")
    return text.count("[") + text.count("{")


def _nests_deeper_than(value: Any, levels: int) -> bool:
    level = [value]
    for _ in range(levels):
        containers = [one for one in level if isinstance(one, dict | list)]
        level = [item for one in containers for item in (one.values() if isinstance(one, dict) else one)]
        if not level:
            return False
    return True


def _encode_slowly(value: Any) -> bytes:
    # orjson refuses lone surrogates and integers beyond 64 bits; the standard encoder escapes the first and writes the
    # second.
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, RecursionError) as error:
        raise ValueError("The value is not JSON.") from error
