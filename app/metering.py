"""Reads along what a model answers, piece by piece as it flows, and counts the tokens it tells."""

from typing import Any

import orjson

from app.prices import Tokens

LONGEST_LINE_BYTES = 1 << 20  # no event with a count is nearly as long
LARGEST_BODY_BYTES = 8 << 20  # an answer in one piece; the longest that a model gives is under 1 MiB
MOST_TOKENS = 1_000_000_000  # more in one answer is a mistake, not a count
FIELDS = {
    "input_tokens": "input",
    "output_tokens": "output",
    "cache_read_input_tokens": "cache_read",
    "cache_creation_input_tokens": "cache_write",
}
TELLING = (b'"message_', b'"content_block_delta"', b'"error"')  # what a line has that tells anything
SAYING = ("text", "thinking", "partial_json")  # where a piece of the answer has its words
BYTES_OF_A_TOKEN = 4  # about as many as in English and in code


class Meter:
    """Counts one answer, streamed or whole.

    Counts are cumulative within an answer, so the largest that was told holds. How much it wrote an answer tells only
    in its end. Until then it is estimated from its words, four bytes of UTF-8 to a token, and never less than what was
    told; an answer that was cut keeps that. Input of any shape is taken: what makes no sense counts nothing. Memory is
    bounded, work is linear.
    """

    def __init__(self) -> None:
        self._model = ""
        self._counts = dict.fromkeys(FIELDS.values(), 0)
        self._counted_output = 0  # up to which the answer itself has counted
        self._said_bytes = 0  # since then
        self._ended = False
        self._rest = bytearray()  # of a line that has not ended, or of an answer in one piece
        self._whole: bool | None = None  # an answer in one piece; None as long as nothing tells
        self._skipping = False
        self._unread = False

    def feed(self, chunk: bytes) -> None:
        if self._whole is None:
            chunk = chunk.lstrip()
            if not chunk:
                return
            self._whole = chunk.startswith(b"{")
        if self._whole:
            self._keep(chunk, LARGEST_BODY_BYTES)
            self._unread = True
            return
        first, *others = chunk.split(b"\n")
        self._keep(first, LONGEST_LINE_BYTES)
        if others:
            self._line(bytes(self._rest))
            *lines, last = others
            for line in lines:
                self._line(line)
            self._rest.clear()
            self._skipping = False
            self._keep(last, LONGEST_LINE_BYTES)

    @property
    def usage(self) -> Tokens:
        self._read_whole()
        estimated = self._counted_output - -self._said_bytes // BYTES_OF_A_TOKEN
        return Tokens(**self._counts | {"output": max(self._counts["output"], estimated)})

    @property
    def model(self) -> str:
        """As the answer names it; empty before it does."""
        self._read_whole()
        return self._model

    @property
    def ended(self) -> bool:
        """Whether it came to its end, be it an error, rather than being cut."""
        self._read_whole()
        return self._ended

    def _keep(self, piece: bytes, limit: int) -> None:
        if not self._skipping and len(self._rest) + len(piece) <= limit:
            self._rest += piece
        else:
            self._rest.clear()
            self._skipping = True

    def _line(self, line: bytes) -> None:
        if line.startswith(b"data:") and len(line) <= LONGEST_LINE_BYTES and any(word in line for word in TELLING):
            self._read(line[5:])

    def _read_whole(self) -> None:
        """Only when somebody asks: an answer in one piece does not say where it ends."""
        if self._unread:
            self._unread = False
            if self._rest.rstrip().endswith(b"}"):
                self._read(bytes(self._rest))

    def _read(self, text: bytes) -> None:
        try:
            event = orjson.loads(text)
        except orjson.JSONDecodeError:
            return
        kind = event.get("type") if isinstance(event, dict) else None
        if kind == "message_start":
            self._count(event.get("message"))
        elif kind == "content_block_delta":
            self._hear(event.get("delta"))
        elif kind == "message_delta":
            told = self._counts["output"]
            self._count(event)
            if self._counts["output"] > told:
                self._counted_output, self._said_bytes = self._counts["output"], 0
        elif kind == "message":
            self._count(event)
            self._ended = True
        elif kind in ("message_stop", "error"):
            self._ended = True

    def _hear(self, piece: Any) -> None:
        for name in SAYING:
            words = piece.get(name) if isinstance(piece, dict) else None
            if isinstance(words, str):
                self._said_bytes += len(words.encode())

    def _count(self, told: Any) -> None:
        if not isinstance(told, dict):
            return
        if isinstance(told.get("model"), str):
            self._model = told["model"]
        usage = told.get("usage")
        for field, name in FIELDS.items():
            count = usage.get(field) if isinstance(usage, dict) else None
            if type(count) is int and count <= MOST_TOKENS:
                self._counts[name] = max(self._counts[name], count)
