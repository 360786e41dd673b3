"""What the loops work with: built once in app/main.py, passed to each of them."""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

from app import auth, transactions
from app.attempts import Fleet
from app.bus import Bus
from app.db import Database
from app.enums import HealthStatus
from app.health import Component
from app.masking import Masks
from app.secrets import Keys
from app.settings import Settings
from app.transactions import Transaction
from orchestrator.providers import Provider, Tier


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    settings: Settings
    db: Database
    bus: Bus
    keys: Keys
    masks: Masks
    provider: Provider
    fleet: Fleet
    address: str  # under which machines of this machine reach the server
    worker_environment: Mapping[str, str] = field(default_factory=dict)  # what tests hurry workers up with

    def change(self, loop: str) -> AbstractAsyncContextManager[Transaction]:
        """A transaction of the server itself, told apart by the loop that made it."""
        return transactions.begin(self.db, self.bus, auth.SYSTEM, request_id=loop)

    def health(self) -> Component:
        """How sandboxes run here, for everybody who asks how the server is."""
        found = self.provider.capabilities()
        limits = ", ".join(sorted(found.limits)) or "none"
        detail = (
            f"{self.provider.name}, tier {found.tier.name}: {found.tier.sentence} Limits held: {limits}. {found.note}"
        )
        status = HealthStatus.DEGRADED if found.tier is Tier.PROCESS else HealthStatus.OK
        return Component(name="sandboxes", status=status, detail=detail.strip())
