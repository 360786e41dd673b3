"""A project's budget: read before each call of the model, said to the agent in time, and then refused."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncSession

from app import clock, messages, sandboxes
from app.enums import SandboxEventType
from app.errors import BudgetExhausted
from app.models import Project, Sandbox, Spending
from app.projects import ProjectSettings
from app.transactions import Transaction
from app.usage import MICRO

WARN_AT = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What a project may spend, and what it has spent."""

    budget_usd: float | None
    spent_usd: float

    @property
    def exhausted(self) -> bool:
        return self.budget_usd is not None and self.spent_usd >= self.budget_usd

    @property
    def scarce(self) -> bool:
        return self.budget_usd is not None and self.spent_usd >= WARN_AT * self.budget_usd


async def standing(session: AsyncSession, sandbox_id: UUID) -> Standing:
    """Of the project that a sandbox works for."""
    found = await session.execute(
        select(Project.settings, Spending.cost_micro_usd)
        .select_from(Sandbox)
        .join(Project, Project.id == Sandbox.project_id)
        .outerjoin(Spending, Spending.project_id == Project.id)
        .where(Sandbox.id == sandbox_id)
    )
    settings, cost = found.one()
    budget = ProjectSettings.stored(settings).budget_usd
    return Standing(budget_usd=budget, spent_usd=(cost or 0) / MICRO)


async def require(session: AsyncSession, sandbox_id: UUID) -> None:
    """Let the call pass, or raise BudgetExhausted. Calls that are under way may still overdraw it."""
    now = await standing(session, sandbox_id)
    if now.exhausted:
        raise BudgetExhausted(f"The project has spent {_usd(now.spent_usd)} of its budget of {_usd(now.budget_usd)}.")


async def warn(tx: Transaction, sandbox_id: UUID) -> None:
    """Say to the agent, once in its sandbox's life, that little is left; to one that has ended it is not said."""
    now = await standing(tx.session, sandbox_id)
    if not now.scarce:
        return
    first = await tx.session.scalar(
        update(Sandbox)
        .where(
            Sandbox.id == sandbox_id,
            Sandbox.budget_warned_at.is_(None),
            Sandbox.status.in_(sandboxes.LIVE),
        )
        .values(budget_warned_at=clock.now())
        .returning(Sandbox.id)
        .execution_options(synchronize_session=False)
    )
    if first is None:
        return
    said = f"This project has spent {_usd(now.spent_usd)} of its budget of {_usd(now.budget_usd)}."
    tx.emit(sandbox_id, SandboxEventType.BUDGET_WARNING, _payload(now, said))
    await messages.tell(
        tx, sandbox_id, f"{said} When it is used up the model stops answering: bring your work to an end that can stay."
    )


def _payload(now: Standing, said: str) -> Mapping[str, Any]:
    return {"text": said, "budgetUsd": now.budget_usd, "spentUsd": now.spent_usd}


def _usd(amount: float | None) -> str:
    return f"${amount or 0:,.2f}"
