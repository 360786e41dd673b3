"""Takes known secrets out of what is stored: as they are, as they are commonly encoded, and in pieces."""

import hashlib
import time
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, AnyStr
from uuid import UUID

import structlog
from sqlalchemy import or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from app import credentials, sieve, spellings
from app.db import Database
from app.models import Credential, Project, Sandbox, Task
from app.secrets import Keys, Unreadable
from app.settings import Settings
from app.sieve import Needle, Sieve, Strand

MARK = "•••"
SHORTEST_CHARS = credentials.SHORTEST_CHARS
LEAST_CHARS = 4  # of a way to write one, when the quotes in it are left out
LANES = 1_000  # told apart in one series; the texts of all others follow each other
REMEMBERED_LANES = 64  # from one series to the next
NAME_BYTES = 9
BORDER = "\0"
REMEMBERED = 1_000
REMEMBER_SECONDS = 2.0  # how long a change of a credential on another replica stays unknown here

Lane = tuple[str, ...]
Begun = Sequence[Sequence[Any]]  # of lanes whose last text may begin a secret: the lane's name, the secret's, how far

log = structlog.get_logger()


class Mask:
    """Takes these secrets out. Those of fewer than eight characters are not told from other text, and stay.

    A secret is found through blanks, line breaks and quotes. In a series it is found in whatever pieces it comes, as
    long as they follow each other in one lane: all of it that is in this series is taken out. What an earlier series
    may have left of it is shorter than what is taken out at the end of any text: eight characters, or half of a short
    one, behind the part that every secret of its kind begins with.
    The `key` makes names for secrets which tell nothing to whoever lacks it.
    """

    def __init__(self, secrets: Iterable[str], *, key: bytes = b"") -> None:
        self.secrets = frozenset(secret for secret in secrets if len(secret) >= SHORTEST_CHARS)
        needles = list(_needles(self.secrets))
        data = [_in_bytes(needle) for needle in needles if _encodes(needle.whole)]
        self._texts = Sieve(needles, mark=MARK, border=BORDER)
        self._bytes = Sieve(data, mark=MARK.encode(), border=BORDER.encode())
        self._named = {_name(one.whole, key): one.whole for one in needles}
        self._key = key

    def text(self, text: str) -> str:
        return _sifted(self._texts, Strand("", [text], [sieve.bare(text)]))

    def bytes_(self, data: bytes) -> bytes:
        return _sifted(self._bytes, Strand(b"", [data], [sieve.bare(data)]))

    def value(self, value: Any) -> Any:
        """The same JSON with each of its texts masked, keys too. Where nothing is found, it is the very same object."""
        [masked], _ = self.series([((), value)], ())
        return masked

    def series(self, told: Sequence[tuple[Lane, Any]], begun: Begun) -> tuple[Sequence[Any], Begun]:
        """Values that follow each other, masked, and what the next series has to be told.

        The texts at one place in the values of one lane follow each other; those of a list are at one place.
        """
        values = [value for _, value in told]
        if not self.secrets:
            return values, ()
        strands, order = self._strands(told, begun)
        sifted = dict(zip(strands, self._texts.sift(list(strands.values())), strict=True))
        names = self._renamed(values)
        if names or any(found.texts is not strands[lane].texts for lane, found in sifted.items()):
            texts = {lane: iter(found.texts) for lane, found in sifted.items()}
            masked = (next(texts[lane]) for lane in order)
            values = [_rebuilt(value, masked, names) for value in values]
        return values, self._opened({lane: found.opened for lane, found in sifted.items()}, begun)

    def _strands(self, told: Sequence[tuple[Lane, Any]], begun: Begun) -> tuple[dict[Lane, Strand[str]], list[Lane]]:
        """The texts by their lanes, and the lane of each text."""
        before = {lane: self._named[name][:length] for lane, name, length in begun if name in self._named}
        strands: dict[Lane, Strand[str]] = {}
        order: list[Lane] = []
        for given, value in told:
            for place, text in _texts(value, given):
                lane = place if place in strands or len(strands) < LANES else ()
                if lane not in strands:
                    strands[lane] = Strand(before.get(_name_of(lane), "") if before else "")
                strands[lane].add(text)
                order.append(lane)
        return strands, order

    def _opened(self, opened: Mapping[Lane, str], begun: Begun) -> Begun:
        """What is open in these lanes now, and still in those that were not heard of; the newest last."""
        if not begun and not any(opened.values()):
            return ()
        now = {_name_of(lane): text for lane, text in opened.items()}
        told = [[lane, name, length] for lane, name, length in begun if lane not in now]
        for lane, text in now.items():
            if text:
                name = next(name for name, whole in self._named.items() if whole.startswith(text))
                told.append([lane, name, len(text)])
        return told[-REMEMBERED_LANES:]

    def _renamed(self, values: Sequence[Any]) -> Mapping[str, str]:
        """The keys in which something was found."""
        names = {name for value in values for name in _keys(value)}
        if not self._texts.suspects(names):
            return {}
        return {name: self.text(name) for name in names if self._texts.suspects([name])}


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
            mask = Mask(secrets, key=self._keys.masked)
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


def _needles(secrets: Iterable[str]) -> Iterator[Needle[str]]:
    constants: dict[str, int] = {}
    for secret in secrets:
        for form, constant in spellings.of(secret):
            whole = sieve.bare(form)
            constants[whole] = min(constant, constants.get(whole, constant))
    return (Needle.of(whole, constant) for whole, constant in constants.items() if len(whole) >= LEAST_CHARS)


def _in_bytes(needle: Needle[str]) -> Needle[bytes]:
    whole, head, tail = needle.whole, needle.whole[: needle.head], needle.whole[-needle.tail :]
    return Needle(whole.encode(), len(head.encode()), len(tail.encode()))


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _sifted(through: Sieve[AnyStr], strand: Strand[AnyStr]) -> AnyStr:
    [found] = through.sift([strand])
    return found.texts[0]


def _name(text: str, key: bytes = b"") -> str:
    data = text.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, key=key, digest_size=NAME_BYTES).hexdigest()


def _name_of(lane: Lane) -> str:
    return _name(BORDER.join(lane))


def _texts(value: Any, place: Lane) -> Iterator[tuple[Lane, str]]:
    """Each text with its place: the names that lead to it."""
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, Mapping):
        for name, one in value.items():
            yield from _texts(one, (*place, name))
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _texts(one, place)


def _keys(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        yield from value
    if isinstance(value, Mapping | list | tuple):
        for one in value.values() if isinstance(value, Mapping) else value:
            yield from _keys(one)


def _rebuilt(value: Any, texts: Iterator[str], names: Mapping[str, str]) -> Any:
    """The same with these texts, in the order in which `_texts` tells them."""
    if isinstance(value, str):
        return next(texts)
    if isinstance(value, Mapping):
        return {names.get(name, name): _rebuilt(one, texts, names) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_rebuilt(one, texts, names) for one in value]
    return value
