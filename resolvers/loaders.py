"""Reads in batches: what all objects of an answer need of one kind costs one statement, however many they are."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from app import (
    activity,
    graphs,
    health,
    messages,
    paging,
    projects,
    sandboxes,
    streams,
    tasks,
    tickets,
    tokens,
    usage,
    users,
    waits,
)
from app.auth import Principal
from app.db import Database
from app.errors import NotFound
from resolvers.batches import Loader, grouped, mapped
from resolvers.histories import Histories


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


class SandboxList(NamedTuple):
    parent_kind: str  # "project" or "task"
    parent_id: UUID
    wanted: sandboxes.Filter
    arguments: paging.Arguments


class Loaders:
    def __init__(self, db: Database, principal: Principal, *, orchestrated: bool, room: waits.Room) -> None:
        self._db = db
        self._principal = principal
        self._orchestrated = orchestrated
        self._room = room
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
        self.usage_of_sandboxes = mapped(db, usage.of_sandboxes)
        self.usage_of_tasks = mapped(db, usage.of_tasks)
        self.usage_of_tickets = mapped(db, usage.of_tickets)
        self.usage_of_projects = mapped(db, usage.of_projects)
        self.ticket_pages = Loader(self._ticket_pages)
        self.ticket_counts = Loader(self._ticket_counts)
        self.task_pages = Loader(self._task_pages)
        self.task_counts = Loader(self._task_counts)
        self.activity_pages = Loader(self._activity_pages)
        self.activity_counts = Loader(self._activity_counts)
        self.sandboxes = self._by_id(sandboxes.by_ids)
        self.streams = self._by_id(streams.by_ids)
        self.messages = self._by_id(messages.by_ids)
        self.live_sandboxes = mapped(db, sandboxes.live_of)
        self.sandbox_pages = Loader(self._sandbox_pages)
        self.sandbox_counts = Loader(self._sandbox_counts)
        self.message_pages = Loader(self._message_pages)
        self.message_counts = mapped(db, messages.counts, missing=int)
        self.histories = Histories(db, principal)

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
            found = await waits.waiting_for(session, keys, orchestrated=orchestrated, room=self._room)
        return [found[task.id] for task in keys]

    async def _ticket_pages(self, keys: list[TicketList]) -> list[Any]:
        answers: dict[TicketList, Any] = {}
        for (wanted, arguments), group in grouped(keys, lambda key: (key.wanted, key.arguments)):
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
        for wanted, group in grouped(keys, lambda key: key[1]):
            async with self._db.reading() as session:
                found = await tickets.counts(session, [project_id for project_id, _ in group], wanted)
            answers |= {key: found.get(key[0], 0) for key in group}
        return [answers[key] for key in keys]

    async def _task_pages(self, keys: list[TaskList]) -> list[Any]:
        answers: dict[TaskList, Any] = {}
        for (kind, wanted, arguments), group in grouped(keys, lambda key: (key.parent_kind, key.wanted, key.arguments)):
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
        for (kind, wanted), group in grouped(keys, lambda key: (key[0], key[2])):
            async with self._db.reading() as session:
                found = await tasks.counts(session, kind, [key[1] for key in group], wanted)
            answers |= {key: found.get(key[1], 0) for key in group}
        return [answers[key] for key in keys]

    async def _sandbox_pages(self, keys: list[SandboxList]) -> list[Any]:
        answers: dict[SandboxList, Any] = {}
        for (kind, wanted, arguments), group in grouped(keys, lambda key: (key.parent_kind, key.wanted, key.arguments)):
            parents = {
                key.parent_id: (
                    self._cursors(f"sandboxes of {kind}", key.parent_id),
                    partial(self.sandbox_counts.load, (kind, key.parent_id, wanted)),
                )
                for key in group
            }
            async with self._db.reading() as session:
                query = partial(sandboxes.of, kind, wanted=wanted)
                found = await paging.pages(session, query, sandboxes.NEWEST_FIRST, arguments, parents=parents)
            answers |= {key: found[key.parent_id] for key in group}
        return [answers[key] for key in keys]

    async def _sandbox_counts(self, keys: list[tuple[str, UUID, sandboxes.Filter]]) -> list[int]:
        answers: dict[tuple[str, UUID, sandboxes.Filter], int] = {}
        for (kind, wanted), group in grouped(keys, lambda key: (key[0], key[2])):
            async with self._db.reading() as session:
                found = await sandboxes.counts(session, kind, [key[1] for key in group], wanted)
            answers |= {key: found.get(key[1], 0) for key in group}
        return [answers[key] for key in keys]

    async def _message_pages(self, keys: list[tuple[UUID, paging.Arguments]]) -> list[Any]:
        answers: dict[tuple[UUID, paging.Arguments], Any] = {}
        for arguments, group in grouped(keys, lambda key: key[1]):
            parents = {
                sandbox_id: (self._cursors("messages", sandbox_id), partial(self.message_counts.load, sandbox_id))
                for sandbox_id, _ in group
            }
            async with self._db.reading() as session:
                found = await paging.pages(session, messages.of, messages.OLDEST_FIRST, arguments, parents=parents)
            answers |= {key: found[key[0]] for key in group}
        return [answers[key] for key in keys]

    async def _activity_pages(self, keys: list[tuple[UUID, paging.Arguments]]) -> list[Any]:
        answers: dict[tuple[UUID, paging.Arguments], Any] = {}
        for arguments, group in grouped(keys, lambda key: key[1]):
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
