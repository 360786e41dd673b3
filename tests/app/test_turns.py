"""Who chooses the next tasks and who says why a task waits agree, whatever the state."""

import itertools
import random
from dataclasses import dataclass, replace
from datetime import timedelta

import pytest
from sqlalchemy import select

from app import clock, ids, queues, waits
from app.enums import FailureCode, Priority, SandboxStatus, TaskPhase, TaskStatus, TicketKind, TicketStatus, WaitCode
from app.models import Project, Sandbox, Spending, Task, TaskDependency, Ticket, TicketBlocker
from app.sandboxes import ENDED
from tests.app.claimed import FLEET
from tests.servers import shared_world

STATES = 30
HOUR = timedelta(hours=1)
NEVER_HERE = {WaitCode.ORCHESTRATOR_OFF, WaitCode.PROVIDER_DOWN, WaitCode.NO_CREDENTIAL}


@pytest.fixture(scope="module")
async def world(postgres):
    async with shared_world(postgres, orchestrator_enabled=False) as running:
        yield running


@dataclass
class Drawn:
    """A state that chance has drawn: three projects with tickets, tasks, what these wait for, and machines."""

    chance: random.Random
    session: object
    now: object
    user: object

    def often(self, share):
        return self.chance.random() < share

    async def add(self, kind, /, **given):
        row = kind(**given)
        self.session.add(row)
        await self.session.flush()
        return row

    async def project(self):
        budget = self.chance.choice([None, None, None, 0, 0.29, 4.03])
        settings = {"concurrency": self.chance.choice([1, 3, 9]), "budget_usd": budget}
        project = await self.add(
            Project,
            id=ids.new(),
            name="Apollo",
            description="",
            default_branch="main",
            settings=settings,
            created_by=self.user,
            archived_at=self.now if self.often(0.1) else None,
        )
        if self.often(0.6):
            spent = round((budget or 0) * 1_000_000) + self.chance.choice([-1, 0, 1])
            await self.add(Spending, project_id=project.id, cost_micro_usd=max(0, spent))
        tickets = [await self.ticket(project, number) for number in range(1, 5)]
        for waiting, blocker in itertools.pairwise(tickets):
            if self.often(0.2):
                await self.add(TicketBlocker, project_id=project.id, ticket_id=waiting.id, blocker_id=blocker.id)
        tasks = [await self.task(self.chance.choice(tickets)) for _ in range(8)]
        for place, needed in enumerate(tasks):
            for waiting in tasks[:place]:
                if self.often(0.05):
                    edge = {"task_id": waiting.id, "depends_on_id": needed.id}
                    await self.add(TaskDependency, project_id=project.id, **edge)
        return tasks

    async def ticket(self, project, number):
        return await self.add(
            Ticket,
            id=ids.new(),
            project_id=project.id,
            number=number,
            title="Land",
            description="",
            kind=TicketKind.FEATURE,
            status=self.chance.choice([TicketStatus.READY, *TicketStatus]),
            priority=Priority.MEDIUM,
            blocked_reason="No fuel" if self.often(0.1) else None,
        )

    async def task(self, ticket):
        status = self.chance.choice([TaskStatus.PENDING] * 9 + list(TaskStatus))
        failed = status in (TaskStatus.FAILED, TaskStatus.CANCELLED)
        completed = status is TaskStatus.COMPLETED
        task = await self.add(
            Task,
            id=ids.new(),
            project_id=ticket.project_id,
            ticket_id=ticket.id,
            title="Build",
            description="",
            phase=TaskPhase.TESTING,
            status=status,
            priority=Priority.MEDIUM,
            attempt=1,
            max_attempts=3,
            failure_code=FailureCode.KILLED if failed else None,
            result={} if completed else None,
            due_at=self.now + (HOUR if self.often(0.1) else -HOUR),
            finished_at=self.now if failed or completed else None,
        )
        if self.often(0.2):
            await self.sandbox(task, self.chance.choice(list(SandboxStatus)))
        return task

    async def sandbox(self, task, status):
        ended = status in ENDED
        await self.add(
            Sandbox,
            id=ids.new(),
            project_id=task.project_id,
            task_id=task.id,
            attempt=1,
            name=str(task.id),
            provider=self.chance.choice([FLEET.provider, "elsewhere"]),
            status=status,
            resources={},
            failure_code=FailureCode.KILLED if ended and status is not SandboxStatus.COMPLETED else None,
            lease_until=self.now,
            deadline_at=self.now,
            finished_at=self.now if ended else None,
            gone_at=self.now if ended and self.often(0.5) else None,
        )


@pytest.fixture
async def drawn(world):
    """Draws a state, in a transaction that is never committed; its tasks that are pending."""
    user = (await world.account("ada")).user.id

    async def draw(session, seed):
        state = Drawn(random.Random(seed), session, await clock.read(session), user)
        for _ in range(3):
            await state.project()
        pending = await session.scalars(select(Task).where(Task.status == TaskStatus.PENDING))
        return pending.all(), replace(FLEET, machines=state.chance.choice([2, 5, 100]))

    return draw


async def test_whose_turn_it_is_waits_for_nothing(world, drawn):
    """A pending task could be chosen now exactly when it has no reason to wait, in whatever state chance draws."""
    seen, free = set(), 0
    for seed in range(STATES):
        async with world.server.db.reading() as session:
            pending, fleet = await drawn(session, seed)
            reasons = await waits.waiting_for(session, pending, orchestrated=True, room=fleet)
            limits = {"provider": fleet.provider, "place": fleet.place, "machines": fleet.machines, "most": 1_000}
            chosen = {task.id for task in pending if await queues.next_up(session, only=task.id, **limits)}
            assert chosen == {task.id for task in pending if not reasons[task.id]}, seed
            assert chosen >= set(await queues.next_up(session, only=None, **limits)), seed
            await session.rollback()
        seen |= {reason.code for found in reasons.values() for reason in found}
        free += len(chosen)
    assert (seen, free > STATES) == (set(WaitCode) - NEVER_HERE, True)
