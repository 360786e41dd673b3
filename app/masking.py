"""Takes known secrets out of what is stored: as they are, as they are commonly encoded, and cut in two."""

import base64
import json
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, AnyStr, Generic
from urllib.parse import quote, quote_plus
from uuid import UUID

import structlog
from sqlalchemy import or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from app import credentials
from app.db import Database
from app.models import Credential, Project, Sandbox, Task
from app.secrets import Keys, Unreadable
from app.settings import Settings

MARK = "•••"
SHORTEST_CHARS = credentials.SHORTEST_CHARS
AROUND = " \t\r\n\"'`"  # may stand between a text's end and the piece of a secret
CONSTANT = re.compile(r"(?:[A-Za-z]{1,10}[0-9]{0,2}[_-]){0,3}")  # `omoi_sbx_`, `sk-ant-api03-`, `ghp_`
BITS_OF_BASE64 = 6
REMEMBERED = 1_000
REMEMBER_SECONDS = 2.0  # how long a change of a credential on another replica stays unknown here

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Needle(Generic[AnyStr]):
    """One way to write a secret. Wherever it is cut in two, one piece holds the `head` or the `tail`."""

    whole: AnyStr
    head: AnyStr
    tail: AnyStr

    @classmethod
    def of(cls, whole: AnyStr, *, constant: int = 0) -> "Needle[AnyStr]":
        """The head is longer than the part of it that is no secret, and head and tail share one character."""
        head = min(max(len(whole) // 2, constant) + 1, len(whole))
        return cls(whole, whole[:head], whole[head - 1 :])


class Mask:
    """Takes these secrets out. Those of fewer than eight characters are not told from other text, and stay."""

    def __init__(self, secrets: Iterable[str]) -> None:
        self.secrets = frozenset(secret for secret in secrets if len(secret) >= SHORTEST_CHARS)
        forms = {form: needle for secret in self.secrets for form, needle in _forms(secret)}
        self._text = list(forms.values())
        self._bytes = [
            Needle(one.whole.encode(), one.head.encode(), one.tail.encode())
            for one in self._text
            if _encodes(one.whole)
        ]
        self._longest = max((len(one.whole) for one in self._text), default=0)

    def text(self, text: str) -> str:
        return _masked(text, self._text, MARK, AROUND)

    def bytes_(self, data: bytes) -> bytes:
        return _masked(data, self._bytes, MARK.encode(), AROUND.encode())

    def value(self, value: Any) -> Any:
        """The same JSON with each of its texts masked, keys too. Where nothing is found, it is the very same object."""
        if not self._text or not self._suspects(list(_texts(value))):
            return value
        return _mapped(value, self.text)

    def _suspects(self, texts: Sequence[str]) -> bool:
        """Whether anything has to be looked at closely: all texts are searched as one, all their ends as another."""
        joined = "\0".join(texts)
        if any(needle.whole in joined for needle in self._text):
            return True
        edges = "\0".join(_edges(text, self._longest) for text in texts)
        return any(needle.head in edges or needle.tail in edges for needle in self._text)


class Masks:
    """The mask of each sandbox: its own token, the server's keys, and the credentials of those it works for."""

    def __init__(self, db: Database, keys: Keys, settings: Settings) -> None:
        self._keys = keys
        self._of_server = frozenset(
            secret
            for secret in (
                settings.anthropic_api_key,
                settings.anthropic_auth_token,
                *(credential.password for credential in settings.git_credentials),
            )
            if secret
        )
        self._known: OrderedDict[UUID, tuple[Mask, float]] = OrderedDict()
        db.after_commit(self._hear_commit)

    async def of(self, session: AsyncSession, sandbox_id: UUID) -> Mask:
        """What is to be masked in everything that comes from this sandbox. What it once was stays so for a while."""
        mask, until = self._known.get(sandbox_id, (Mask(()), 0.0))
        if until > time.monotonic():
            return mask
        secrets = mask.secrets | Mask(await self._secrets_of(session, sandbox_id)).secrets
        if secrets != mask.secrets:
            mask = Mask(secrets)
        self._known[sandbox_id] = mask, time.monotonic() + REMEMBER_SECONDS
        self._known.move_to_end(sandbox_id)
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        return mask

    def _hear_commit(self, left: Mapping[Any, Any]) -> None:
        """A credential was changed here: ask again, and keep to what was known before."""
        if credentials.CHANGED in left:
            for sandbox_id, (mask, _) in self._known.items():
                self._known[sandbox_id] = mask, 0.0

    async def _secrets_of(self, session: AsyncSession, sandbox_id: UUID) -> Collection[str]:
        found = await session.execute(
            select(Sandbox.attempt, Credential)
            .join(Project, Project.id == Sandbox.project_id)
            .outerjoin(Task, Task.id == Sandbox.task_id)
            .outerjoin(Credential, or_(Credential.user_id == Project.created_by, Credential.user_id == Task.created_by))
            .where(Sandbox.id == sandbox_id)
        )
        secrets = set(self._of_server)
        for attempt, credential in found:
            secrets.add(self._keys.sandbox_token(sandbox_id, attempt))
            if credential is not None:
                secrets |= self._unsealed(credential)
        return secrets

    def _unsealed(self, credential: Credential) -> set[str]:
        """Nothing of one that cannot be read: nobody was given it either."""
        try:
            return {credentials.unsealed(self._keys, credential)}
        except Unreadable:
            log.warning("credential_unreadable", user_id=str(credential.user_id), kind=credential.kind.value)
            return set()


def _forms(secret: str) -> Iterator[tuple[str, Needle[str]]]:
    """The ways to write it. Only as it stands does it begin with something that everybody may see."""
    plain = CONSTANT.match(secret)
    constant = len(plain[0]) if plain else 0
    escaped = {_escaped(secret), _escaped(_escaped(secret)), _escaped(secret).replace("/", "\\/")}
    for form in {secret, *escaped, *_url_encoded(secret)}:
        yield form, Needle.of(form, constant=constant)
    data = secret.encode("utf-8", "surrogatepass")
    for form in {data.hex(), data.hex().upper(), *_base64(data)}:
        yield form, Needle.of(form)


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _url_encoded(secret: str) -> Iterator[str]:
    for safe in ("", "/", "/:@!$&'()*+,;=~"):
        for encode in (quote, quote_plus):
            form = encode(secret, safe=safe, errors="surrogatepass")
            yield form
            yield re.sub(r"%..", lambda escape: escape[0].lower(), form)


def _base64(data: bytes) -> Iterator[str]:
    """What of its encoding does not depend on what stands before and after it, at each of three places."""
    for before in range(3):
        encoded = base64.b64encode(bytes(before) + data).decode()
        first = -(-8 * before // BITS_OF_BASE64)
        last = 8 * (before + len(data)) // BITS_OF_BASE64
        yield encoded[first:last]
        yield encoded[first:last].replace("+", "-").replace("/", "_")


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _masked(text: AnyStr, needles: Sequence[Needle[AnyStr]], mark: AnyStr, around: AnyStr) -> AnyStr:
    spans = sorted(_spans(text, needles, around))
    if not spans:
        return text
    parts: list[AnyStr] = []
    place = 0
    for start, end in spans:
        if start > place or not parts:
            parts += [text[place:start], mark]
        place = max(place, end)
    parts.append(text[place:])
    return text[:0].join(parts)


def _spans(text: AnyStr, needles: Sequence[Needle[AnyStr]], around: AnyStr) -> Iterator[tuple[int, int]]:
    """Where there is a secret, or such a piece of one at an end that the rest may stand in another text."""
    begin, end = len(text) - len(text.lstrip(around)), len(text.rstrip(around))
    for needle in needles:
        whole = needle.whole
        place = text.find(whole)
        while place >= 0:
            yield place, place + len(whole)
            place = text.find(whole, place + len(whole))
        if needle.tail in text[begin : begin + len(whole)]:
            yield from _rest(text, needle, begin)
        if needle.head in text[max(0, end - len(whole)) : end]:
            yield from _start(text, needle, end)


def _rest(text: AnyStr, needle: Needle[AnyStr], begin: int) -> Iterator[tuple[int, int]]:
    whole = needle.whole
    for length in range(len(whole) - 1, len(needle.tail) - 1, -1):
        if text.startswith(whole[-length:], begin):
            yield begin, begin + length
            return


def _start(text: AnyStr, needle: Needle[AnyStr], end: int) -> Iterator[tuple[int, int]]:
    whole = needle.whole
    for length in range(len(whole) - 1, len(needle.head) - 1, -1):
        if text.endswith(whole[:length], 0, end):
            yield end - length, end
            return


def _edges(text: str, reach: int) -> str:
    """All of a short text, of a long one as much at both ends as a piece of a secret may take."""
    if len(text) <= 2 * reach:
        return text
    return f"{text.lstrip(AROUND)[:reach]}\0{text.rstrip(AROUND)[-reach:]}"


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, one in value.items():
            yield name
            yield from _texts(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _texts(one)


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(name): _mapped(one, change) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_mapped(one, change) for one in value]
    return value
