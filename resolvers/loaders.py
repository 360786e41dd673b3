"""Reads in batches: what all objects of an answer need of one kind costs one statement, however many they are."""

from collections.abc import Awaitable, Callable, ItemsView, Sequence
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from strawberry.dataloader import DataLoader

from app import activity, graphs, health, paging, projects, tasks, tickets, tokens, users
from app.auth import Principal
from app.db import Database
from app.errors import NotFound

Loader = DataLoader[Any, Any]


class TicketList(NamedTuple):
    """One page of a project's tickets. Equal lists of several projects are read together."""

    project_id: UUID
    wanted: tickets.Filter
    arguments: paging.Arguments


class TaskList(NamedTuple):
    parent_kind: str  # "project" or "ticket"
    parent_id: UUID
    wanted: tasks.Filter
    arguments: paging.Arguments


class Loaders:
    def __init__(self, db: Database, principal: Principal, *, orchestrated: bool) -> None:
        self._db = db
        self._principal = principal
        self._orchestrated = orchestrated
        self.users = self._by_id(users.by_ids)
        self.tokens = self._by_id(tokens.by_ids)
        self.projects = self._by_id(projects.by_ids)
        self.tickets = self._by_id(tickets.by_ids)
        self.tasks = self._by_id(tasks.by_ids)
        self.roles = Loader(self._roles)
        self.members = Loader(self._members)
        self.blockers = self._neighbours(tickets.BLOCKERS, backwards=False)
        self.blocked = self._neighbours(tickets.BLOCKERS, backwards=True)
        self.dependencies = self._neighbours(tasks.DEPENDENCIES, backwards=False)
        self.dependents = self._neighbours(tasks.DEPENDENCIES, backwards=True)
        self.waiting = Loader(self._waiting)
        self.ticket_pages = Loader(self._ticket_pages)
        self.ticket_counts = Loader(self._ticket_counts)
        self.task_pages = Loader(self._task_pages)
        self.task_counts = Loader(self._task_counts)
        self.activity_pages = Loader(self._activity_pages)
        self.activity_counts = Loader(self._activity_counts)

    def _by_id(self, read: Callable[[Any, Sequence[UUID]], Awaitable[Sequence[Any]]]) -> Loader:
        async def load(keys: list[UUID]) -> list[Any]:
            async with self._db.reading() as session:
                found = {row.id: row for row in await read(session, keys)}
            return [found.get(key) or NotFound() for key in keys]

        return Loader(load)

    def _neighbours(self, edges: graphs.Edges, *, backwards: bool) -> Loader:
        async def load(keys: list[UUID]) -> list[Any]:
            async with self._db.reading() as session:
                found = await graphs.neighbours(session, edges, keys, backwards=backwards)
            return [found.get(key, []) for key in keys]

        return Loader(load)

    async def _roles(self, keys: list[UUID]) -> list[Any]:
        async with self._db.reading() as session:
            found = await projects.roles_of(session, self._principal, keys)
        return [found.get(key) or NotFound() for key in keys]

    async def _members(self, keys: list[UUID]) -> list[Any]:
        async with self._db.reading() as session:
            found = await projects.members_of(session, keys)
        return [[row for row in found if row.project_id == key] for key in keys]

    async def _waiting(self, keys: list[Any]) -> list[Any]:
        async with self._db.reading() as session:
            orchestrated = self._orchestrated or await health.orchestrated(session)
            found = await tasks.waiting_for(session, keys, orchestrated=orchestrated)
        return [found[task.id] for task in keys]

    async def _ticket_pages(self, keys: list[TicketList]) -> list[Any]:
        answers: dict[TicketList, Any] = {}
        for (wanted, arguments), group in _grouped(keys, lambda key: (key.wanted, key.arguments)):
            parents = {
                key.project_id: (
                    self._cursors("tickets", key.project_id),
                    partial(self.ticket_counts.load, (key.project_id, wanted)),
                )
                for key in group
            }
            async with self._db.reading() as session:
                query = partial(tickets.of_project, wanted=wanted)
                found = await paging.pages(session, query, tickets.NEWEST_FIRST, arguments, parents=parents)
            answers |= {key: found[key.project_id] for key in group}
        return [answers[key] for key in keys]

    async def _ticket_counts(self, keys: list[tuple[UUID, tickets.Filter]]) -> list[int]:
        answers: dict[tuple[UUID, tickets.Filter], int] = {}
        for wanted, group in _grouped(keys, lambda key: key[1]):
            async with self._db.reading() as session:
                found = await tickets.counts(session, [project_id for project_id, _ in group], wanted)
            answers |= {key: found.get(key[0], 0) for key in group}
        return [answers[key] for key in keys]

    async def _task_pages(self, keys: list[TaskList]) -> list[Any]:
        answers: dict[TaskList, Any] = {}
        for (kind, wanted, arguments), group in _grouped(
            keys, lambda key: (key.parent_kind, key.wanted, key.arguments)
        ):
            parents = {
                key.parent_id: (
                    self._cursors(f"tasks of {kind}", key.parent_id),
                    partial(self.task_counts.load, (kind, key.parent_id, wanted)),
                )
                for key in group
            }
            async with self._db.reading() as session:
                query = partial(tasks.of, kind, wanted=wanted)
                found = await paging.pages(session, query, tasks.OLDEST_FIRST, arguments, parents=parents)
            answers |= {key: found[key.parent_id] for key in group}
        return [answers[key] for key in keys]

    async def _task_counts(self, keys: list[tuple[str, UUID, tasks.Filter]]) -> list[int]:
        answers: dict[tuple[str, UUID, tasks.Filter], int] = {}
        for (kind, wanted), group in _grouped(keys, lambda key: (key[0], key[2])):
            async with self._db.reading() as session:
                found = await tasks.counts(session, kind, [key[1] for key in group], wanted)
            answers |= {key: found.get(key[1], 0) for key in group}
        return [answers[key] for key in keys]

    async def _activity_pages(self, keys: list[tuple[UUID, paging.Arguments]]) -> list[Any]:
        answers: dict[tuple[UUID, paging.Arguments], Any] = {}
        for arguments, group in _grouped(keys, lambda key: key[1]):
            counts = {project_id: partial(self.activity_counts.load, project_id) for project_id, _ in group}
            async with self._db.reading() as session:
                found = await activity.pages(session, arguments, counts=counts)
            answers |= {key: found[key[0]] for key in group}
        return [answers[key] for key in keys]

    async def _activity_counts(self, keys: list[UUID]) -> list[int]:
        async with self._db.reading() as session:
            found = await activity.counts(session, keys)
        return [found.get(key, 0) for key in keys]

    def _cursors(self, what: str, parent_id: UUID) -> paging.Sealed:
        return paging.Sealed(f"{what} {parent_id} for {self._principal.id}")


def _grouped(keys: Sequence[Any], by: Callable[[Any], Any]) -> ItemsView[Any, list[Any]]:
    groups: dict[Any, list[Any]] = {}
    for key in keys:
        groups.setdefault(by(key), []).append(key)
    return groups.items()
