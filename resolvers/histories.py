"""Reads in batches of what happened in sandboxes: constant in number, however many sandboxes an answer holds."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from app import blobs, files, histories, paging
from app.auth import Principal
from app.db import Database
from app.enums import SandboxEventType
from app.reported import Blob
from resolvers.batches import Loader, grouped, mapped

WORDS = histories.Filter(types=(SandboxEventType.MESSAGE,))


class EventList(NamedTuple):
    """One page of a sandbox's events. Equal lists of several sandboxes are read together."""

    sandbox_id: UUID
    wanted: histories.Filter
    arguments: paging.Arguments


class Around(NamedTuple):
    sandbox_id: UUID
    seq: int
    size: int


class Histories:
    def __init__(self, db: Database, principal: Principal) -> None:
        self._db = db
        self._principal = principal
        self.events = mapped(db, histories.at)
        self.around = Loader(self._around)
        self.pages = Loader(self._pages)
        self.counts = Loader(self._counts)
        self.turn_pages = Loader(self._turn_pages)
        self.turn_counts = mapped(db, histories.turn_counts, missing=int)
        self.turn_ends = mapped(db, histories.turn_ends)
        self.turn_events = mapped(db, partial(histories.of_turns, wanted=histories.Filter()), missing=list)
        self.turn_words = mapped(db, partial(histories.of_turns, wanted=WORDS), missing=list)
        self.changes = mapped(db, files.changes)
        self.blobs = mapped(db, _blobs)
        self.transcript_sizes = mapped(db, histories.transcript_sizes)
        self.logs = mapped(db, histories.logs, missing=str)

    async def _around(self, keys: list[Around]) -> list[Any]:
        answers: dict[Around, Any] = {}
        for size, group in grouped(keys, lambda key: key.size):
            places = [(key.sandbox_id, key.seq) for key in group]
            async with self._db.reading() as session:
                found = await histories.around(session, places, count=size)
            answers |= {key: found.get((key.sandbox_id, key.seq), []) for key in group}
        return [answers[key] for key in keys]

    async def _pages(self, keys: list[EventList]) -> list[Any]:
        answers: dict[EventList, Any] = {}
        for (wanted, arguments), group in grouped(keys, lambda key: (key.wanted, key.arguments)):
            counts = {key.sandbox_id: partial(self.counts.load, (key.sandbox_id, wanted)) for key in group}
            async with self._db.reading() as session:
                found = await histories.pages(session, wanted, arguments, counts=counts)
            answers |= {key: found[key.sandbox_id] for key in group}
        return [answers[key] for key in keys]

    async def _counts(self, keys: list[tuple[UUID, histories.Filter]]) -> list[int]:
        answers: dict[tuple[UUID, histories.Filter], int] = {}
        for wanted, group in grouped(keys, lambda key: key[1]):
            async with self._db.reading() as session:
                found = await histories.counts(session, [sandbox_id for sandbox_id, _ in group], wanted)
            answers |= {key: found.get(key[0], 0) for key in group}
        return [answers[key] for key in keys]

    async def _turn_pages(self, keys: list[tuple[UUID, paging.Arguments]]) -> list[Any]:
        answers: dict[tuple[UUID, paging.Arguments], Any] = {}
        for arguments, group in grouped(keys, lambda key: key[1]):
            parents = {
                sandbox_id: (
                    paging.Sealed(f"turns of {sandbox_id} for {self._principal.id}"),
                    partial(self.turn_counts.load, sandbox_id),
                )
                for sandbox_id, _ in group
            }
            async with self._db.reading() as session:
                found = await paging.pages(session, histories.turns, histories.BY_TURN, arguments, parents=parents)
            answers |= {key: found[key[0]] for key in group}
        return [answers[key] for key in keys]


async def _blobs(session: Any, wanted: Sequence[Blob]) -> Mapping[Blob, bytes]:
    found: dict[Blob, bytes] = {}
    for sandbox_id, group in grouped(wanted, lambda blob: blob.sandbox_id):
        contents = await blobs.read_many(session, sandbox_id, [blob.sha256 for blob in group])
        found |= {Blob(sandbox_id, sha256): content for sha256, content in contents.items()}
    return found
