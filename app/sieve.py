"""Finds secrets in texts that follow each other, wherever they are cut, and puts a mark in their place."""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import AnyStr, Generic

AROUND = " \t\r\n\"'`"  # looked through: line breaks of base64, and what stands between the pieces of a secret
PIECE_CHARS = 8  # of a secret's beginning or end are enough to be taken out where a text ends or begins

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Needle(Generic[AnyStr]):
    """One way to write a secret, without what is looked through."""

    whole: AnyStr
    head: int  # so many of its first characters are taken out at a text's end
    tail: int  # so many of its last, at a text's beginning

    @classmethod
    def of(cls, whole: AnyStr, constant: int) -> "Needle[AnyStr]":
        """The head counts from behind the part that is no secret. Of a short one both are about a half, and wherever
        it is cut in two, one piece has the head or the other the tail.
        """
        constant = constant if constant + PIECE_CHARS <= len(whole) else 0
        head = constant + min(PIECE_CHARS, (len(whole) - constant) // 2 + 1)
        return cls(whole, head, min(PIECE_CHARS, len(whole) - head + 1))


@dataclass(slots=True)
class Strand(Generic[AnyStr]):
    """Texts that follow each other, and what stood before them as far as it may begin a secret."""

    before: AnyStr
    texts: list[AnyStr] = field(default_factory=list)
    bare: list[AnyStr] = field(default_factory=list)  # the same texts, without what is looked through

    def add(self, text: AnyStr) -> None:
        self.texts.append(text)
        self.bare.append(bare(text))

    @property
    def joined(self) -> AnyStr:
        return self.before + self.before[:0].join(self.bare)


@dataclass(frozen=True, slots=True)
class Sifted(Generic[AnyStr]):
    texts: list[AnyStr]  # the very list that was given, when nothing was found
    opened: AnyStr  # what of their end may begin a secret


class Sieve(Generic[AnyStr]):
    def __init__(self, needles: Iterable[Needle[AnyStr]], *, mark: AnyStr, border: AnyStr) -> None:
        self._needles: Sequence[Needle[AnyStr]] = list(needles)
        self._mark: AnyStr = mark
        self._border: AnyStr = border  # what no secret has
        self._chars: set[AnyStr] = {one.whole[at : at + 1] for one in self._needles for at in range(len(one.whole))}
        self._longest = max((len(one.whole) for one in self._needles), default=0)

    def sift(self, strands: Sequence[Strand[AnyStr]]) -> Iterator[Sifted[AnyStr]]:
        """Mask in each strand the secrets that it holds, in whatever pieces, and such a beginning or end of one where
        a text ends or begins that the rest may stand somewhere else.
        """
        joined = [strand.joined for strand in strands]
        wholes = self._wholes(joined)
        cut = self._cut([text for strand in strands for text in strand.bare])
        for strand, text in zip(strands, joined, strict=True):
            may_go_on = text[-1:] in self._chars
            opened = [(_opened(text, needle.whole), needle) for needle in self._needles] if may_go_on else []
            spans = [span for whole in wholes for span in _places(text, whole)]
            spans += [(len(text) - length, len(text)) for length, needle in opened if length >= needle.head]
            spans += _edges(strand, cut) if cut else ()
            longest = max((length for length, _ in opened), default=0)
            yield Sifted(self._replaced(strand, _merged(spans)), text[len(text) - longest :])

    def suspects(self, texts: Iterable[AnyStr]) -> bool:
        """Whether something may be found in one of them; far quicker than to sift them."""
        own = [bare(text) for text in texts]
        return bool(self._wholes(own) or self._cut(own))

    def _wholes(self, texts: Sequence[AnyStr]) -> Sequence[AnyStr]:
        everything = self._border.join(texts)
        return [needle.whole for needle in self._needles if needle.whole in everything]

    def _cut(self, texts: Sequence[AnyStr]) -> Sequence[Needle[AnyStr]]:
        """Those of which an end or a beginning may hold a piece: all are searched as one."""
        ends = self._border.join(text[-self._longest :] for text in texts)
        begins = self._border.join(text[: self._longest] for text in texts)
        return [
            needle
            for needle in self._needles
            if needle.whole[: needle.head] in ends or needle.whole[-needle.tail :] in begins
        ]

    def _replaced(self, strand: Strand[AnyStr], spans: Sequence[Span]) -> list[AnyStr]:
        if not spans:
            return strand.texts
        replaced: list[AnyStr] = []
        passed = len(strand.before)
        for text, own in zip(strand.texts, strand.bare, strict=True):
            inside = list(_inside(spans, passed, passed + len(own)))
            replaced.append(_marked(text, inside, self._mark) if inside else text)
            passed += len(own)
        return replaced


def bare(text: AnyStr) -> AnyStr:
    for char in AROUND:
        text = text.replace(char, "") if isinstance(text, str) else text.replace(char.encode(), b"")
    return text


def _places(text: AnyStr, whole: AnyStr) -> Iterator[Span]:
    place = text.find(whole)
    while place >= 0:
        yield place, place + len(whole)
        place = text.find(whole, place + len(whole))


def _opened(text: AnyStr, whole: AnyStr) -> int:
    """How long the longest beginning of it is with which the text ends."""
    place = text.find(whole[:1], max(0, len(text) - len(whole) + 1))
    while place >= 0:
        if whole.startswith(text[place:]):
            return len(text) - place
        place = text.find(whole[:1], place + 1)
    return 0


def _closed(text: AnyStr, whole: AnyStr) -> int:
    """How long the longest end of it is with which the text begins."""
    return next((len(whole) - at for at in range(1, len(whole)) if text.startswith(whole[at:])), 0)


def _edges(strand: Strand[AnyStr], needles: Sequence[Needle[AnyStr]]) -> Iterator[Span]:
    passed = len(strand.before)
    for text in strand.bare:
        for needle in needles:
            whole, end = needle.whole, passed + len(text)
            if whole[-needle.tail :] in text[: len(whole)] and (length := _closed(text, whole)) >= needle.tail:
                yield passed, passed + length
            if whole[: needle.head] in text[-len(whole) :] and (length := _opened(text, whole)) >= needle.head:
                yield end - length, end
        passed += len(text)


def _merged(spans: Iterable[Span]) -> Sequence[Span]:
    """In order, and none that touches another."""
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged


def _inside(spans: Sequence[Span], first: int, last: int) -> Iterator[Span]:
    """The parts of these that are between two places, counted from the first."""
    for at in range(bisect_right(spans, first, key=lambda span: span[1]), len(spans)):
        start, end = max(spans[at][0], first), min(spans[at][1], last)
        if start >= end:
            return
        yield start - first, end - first


def _marked(text: AnyStr, spans: Sequence[Span], mark: AnyStr) -> AnyStr:
    """The text with the mark in place of these parts, which are counted without what is looked through."""
    ends = _among([place for start, end in spans for place in (start, end - 1)], text)
    parts: list[AnyStr] = []
    place = 0
    for first, last in zip(ends, ends, strict=True):
        parts += [text[place:first], mark]
        place = last + 1
    parts.append(text[place:])
    return text[:0].join(parts)


def _among(places: Sequence[int], text: AnyStr) -> Iterator[int]:
    """Where these characters stand when what is looked through is counted too."""
    passed, wanted = 0, iter(places)
    place = next(wanted, None)
    for run in re.finditer(_kept(text), text):
        while place is not None and place < passed + run.end() - run.start():
            yield run.start() + place - passed
            place = next(wanted, None)
        passed += run.end() - run.start()


def _kept(text: AnyStr) -> AnyStr:
    pattern = f"[^{AROUND}]+"
    return pattern if isinstance(text, str) else pattern.encode()
