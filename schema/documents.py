"""Trusted documents: what the clients were built with, by the SHA-256 of the text."""

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

import orjson

from app.auth import Principal
from app.enums import PrincipalKind
from app.errors import BadUserInput, CannotStart
from app.settings import Settings
from schema.errors import PersistedQueryNotFound, PersistedQueryRequired

PREFIX = "sha256:"

# The worker, the guardian and the server itself are our own programs and speak with documents of their own.
OUTSIDERS = frozenset({PrincipalKind.USER, PrincipalKind.SERVICE})


class TrustedDocuments:
    def __init__(self, texts: Mapping[str, str], *, only: bool = False) -> None:
        self._texts = texts
        self._only = only

    def text(self, query: str | None, named: str | None, principal: Principal) -> str:
        """The document to execute, from its text, its name or both, as far as this principal may choose."""
        if query is None:
            if named is None:
                raise BadUserInput("The request has neither `query` nor `documentId`.")
            return self._known(named)
        if named is not None and bare(named) != digest(query):
            raise BadUserInput("`query` is not the document that the id names.")
        if self._only and principal.kind in OUTSIDERS and digest(query) not in self._texts:
            raise PersistedQueryRequired
        return query

    def _known(self, named: str) -> str:
        text = self._texts.get(bare(named))
        if text is None:
            raise PersistedQueryNotFound
        return text


def load(settings: Settings) -> TrustedDocuments:
    """Read the manifest of this release and that of the last one, whose clients may still be open in browsers."""
    texts: dict[str, str] = {}
    for file in (settings.previous_documents, settings.documents):
        if file is not None:
            texts |= _read(file)
    return TrustedDocuments(texts, only=settings.trusted_documents_only)


def bare(named: str) -> str:
    return named.removeprefix(PREFIX).lower()


def digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def _read(file: Path) -> dict[str, str]:
    try:
        manifest = orjson.loads(file.read_bytes())
    except (OSError, orjson.JSONDecodeError) as error:
        raise CannotStart(f"The manifest of trusted documents {file} cannot be read: {error}") from error
    if not isinstance(manifest, dict):
        raise CannotStart(f"The manifest of trusted documents {file} is not a JSON object.")
    return dict(_checked(file, name, text) for name, text in manifest.items())


def _checked(file: Path, name: str, text: object) -> tuple[str, str]:
    key = bare(name)
    if not re.fullmatch("[0-9a-f]{64}", key) or not isinstance(text, str) or digest(text) != key:
        raise CannotStart(f"The manifest {file} has an entry whose name is not the SHA-256 of its text: {name[:80]}")
    return key, text
