"""Branch names the GitFlow way: what kind of work it is, the ticket's number, and its title in plain letters."""

import re
import unicodedata
from collections.abc import Mapping

from app.enums import TicketKind

SLUG_CHARS = 40
NAMELESS = "work"  # for titles that have no letter or digit in plain ASCII
OTHERS = re.compile(r"[^a-z0-9]+")

_PREFIXES: Mapping[TicketKind, str] = {
    TicketKind.FEATURE: "feature",
    TicketKind.BUG: "fix",
    TicketKind.HOTFIX: "hotfix",
    TicketKind.REFACTOR: "refactor",
    TicketKind.DOCS: "docs",
    TicketKind.TEST: "test",
    TicketKind.CHORE: "chore",
}


def name(kind: TicketKind, number: int, title: str) -> str:
    """Valid for git whatever the title is, and the ticket's own within its project: the number sees to that."""
    return f"{_PREFIXES[kind]}/{number}-{slug(title)}"


def slug(title: str) -> str:
    plain = unicodedata.normalize("NFKD", title.casefold()).encode("ascii", "ignore").decode().lower()
    words = OTHERS.sub("-", plain).strip("-")
    if len(words) > SLUG_CHARS:
        words = words[: SLUG_CHARS + 1].rpartition("-")[0] or words[:SLUG_CHARS]
    return words or NAMELESS
