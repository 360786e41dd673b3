"""Media types: what a client accepts, and what it sends."""

from functools import lru_cache

JSON = "application/json"
GRAPHQL = "application/graphql-response+json"
EVENT_STREAM = "text/event-stream"

# A client that accepts anything is of before application/graphql-response+json: the reference suite wants JSON for it.
RANKS = {GRAPHQL: (3, GRAPHQL), JSON: (2, JSON), "application/*": (1, JSON), "*/*": (1, JSON)}


@lru_cache(maxsize=128)
def negotiate(accept: bytes) -> tuple[str | None, bool]:
    """The media type for a single answer (None: nothing that we have), and whether a subscription may stream."""
    ranges = dict(_ranges(accept.decode("latin-1"))) or {"*/*": 1.0}
    wanted = [(quality, *RANKS[name]) for name, quality in ranges.items() if quality > 0 and name in RANKS]
    streams = ranges.get(EVENT_STREAM, 0.0) > 0
    media = max(wanted)[2] if wanted else EVENT_STREAM if streams else None
    return media, streams


def is_json(content_type: bytes) -> bool:
    if content_type == b"application/json":
        return True
    media, *parameters = content_type.decode("latin-1").lower().split(";")
    charsets = [value.strip().strip('"') for value in (p.partition("charset=")[2] for p in parameters) if value]
    return media.strip() == JSON and all(charset in {"utf-8", "utf8"} for charset in charsets)


def _ranges(accept: str) -> list[tuple[str, float]]:
    return [_range(part) for part in accept.lower().split(",") if part.strip()]


def _range(part: str) -> tuple[str, float]:
    name, *parameters = (piece.strip() for piece in part.split(";"))
    for parameter in parameters:
        if parameter.startswith("q="):
            try:
                return name, float(parameter[2:])
            except ValueError:
                return name, 0.0
    return name, 1.0
