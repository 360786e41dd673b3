"""What work has cost: counted on the sandbox whose model calls it was, and added up for all that stands above it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import Select, func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstrumentedAttribute

from app import clock
from app.models import Project, Sandbox, Spending, Task
from app.prices import Tokens
from app.transactions import Transaction

MICRO = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cost_usd: float = 0.0
    sandbox_seconds: float = 0.0


async def add(tx: Transaction, sandbox_id: UUID, tokens: Tokens, cost_micro_usd: int) -> None:
    """Count one answer of the model, also for a sandbox that has ended meanwhile: it was paid for."""
    project_id = await tx.session.scalar(
        update(Sandbox)
        .where(Sandbox.id == sandbox_id)
        .values(
            input_tokens=Sandbox.input_tokens + tokens.input,
            output_tokens=Sandbox.output_tokens + tokens.output,
            cache_read_tokens=Sandbox.cache_read_tokens + tokens.cache_read,
            cache_write_tokens=Sandbox.cache_write_tokens + tokens.cache_write,
            cost_micro_usd=Sandbox.cost_micro_usd + cost_micro_usd,
        )
        .returning(Sandbox.project_id)
        .execution_options(synchronize_session=False)
    )
    if project_id is None:
        return
    await tx.session.execute(
        insert(Spending)
        .values(project_id=project_id, cost_micro_usd=cost_micro_usd)
        .on_conflict_do_update(
            index_elements=["project_id"], set_={"cost_micro_usd": Spending.cost_micro_usd + cost_micro_usd}
        )
    )


async def payer(session: AsyncSession, sandbox_id: UUID) -> UUID:
    """Whose credentials a sandbox works with: of who made its task, else of who made its project."""
    found = await session.scalars(
        select(func.coalesce(Task.created_by, Project.created_by))
        .select_from(Sandbox)
        .join(Project, Project.id == Sandbox.project_id)
        .outerjoin(Task, Task.id == Sandbox.task_id)
        .where(Sandbox.id == sandbox_id)
    )
    return found.one()


async def spent(session: AsyncSession, project_id: UUID) -> float:
    """What a project has cost so far, in US dollars."""
    cost = await session.scalar(select(Spending.cost_micro_usd).where(Spending.project_id == project_id))
    return (cost or 0) / MICRO


async def of_sandboxes(session: AsyncSession, sandbox_ids: Sequence[UUID]) -> Mapping[UUID, Usage]:
    return await _by(session, _sums(Sandbox.id), Sandbox.id, sandbox_ids)


async def of_tasks(session: AsyncSession, task_ids: Sequence[UUID]) -> Mapping[UUID, Usage]:
    return await _by(session, _sums(Sandbox.task_id), Sandbox.task_id, task_ids)


async def of_tickets(session: AsyncSession, ticket_ids: Sequence[UUID]) -> Mapping[UUID, Usage]:
    query = _sums(Task.ticket_id).join(Task, Task.id == Sandbox.task_id)
    return await _by(session, query, Task.ticket_id, ticket_ids)


async def of_projects(session: AsyncSession, project_ids: Sequence[UUID]) -> Mapping[UUID, Usage]:
    return await _by(session, _sums(Sandbox.project_id), Sandbox.project_id, project_ids)


def _sums(key: InstrumentedAttribute[Any]) -> Select[Any]:
    """One row for each key. Sandboxes count their time from the moment at which they run, and up to now."""
    ran = func.coalesce(Sandbox.finished_at, clock.now()) - Sandbox.started_at
    return (
        select(
            key,
            func.sum(Sandbox.input_tokens),
            func.sum(Sandbox.output_tokens),
            func.sum(Sandbox.cache_read_tokens),
            func.sum(Sandbox.cache_write_tokens),
            func.sum(Sandbox.cost_micro_usd),
            func.coalesce(func.sum(func.extract("epoch", ran)), 0),
        )
        .select_from(Sandbox)
        .group_by(key)
    )


async def _by(
    session: AsyncSession, query: Select[Any], key: InstrumentedAttribute[Any], keys: Sequence[UUID]
) -> Mapping[UUID, Usage]:
    """An answer for each key; what has no sandbox has cost nothing."""
    found = await session.execute(query.where(key.in_(keys)))
    usages = {row[0]: _usage(*row[1:]) for row in found}
    return {one: usages.get(one) or Usage() for one in keys}


def _usage(read: int, written: int, cache_read: int, cache_written: int, micro_usd: int, seconds: float) -> Usage:
    """Postgres adds up bigints as numeric."""
    return Usage(
        input_tokens=int(read),
        output_tokens=int(written),
        cache_read_tokens=int(cache_read),
        cache_write_tokens=int(cache_written),
        cost_usd=int(micro_usd) / MICRO,
        sandbox_seconds=float(seconds),
    )
