"""What every answer needs: who asks, and the parts of the server that answers are made from."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from app import auth
from app.attempts import Fleet
from app.auth import Principal, Rule
from app.bus import Bus
from app.db import Database
from app.feeds import Feeds
from app.health import Component
from app.masking import Masks
from app.models import Sandbox
from app.quotas import Quotas
from app.rights import Rights
from app.secrets import Keys
from app.settings import Settings
from resolvers.loaders import Loaders


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The parts of the server, built once in app/main.py."""

    settings: Settings
    db: Database
    bus: Bus
    keys: Keys
    masks: Masks
    quotas: Quotas
    address: str  # under which browsers reach this server
    feeds: Feeds
    rights: Rights
    fleet: Fleet
    fleet_health: Callable[[], Component] | None  # None on a server that runs no sandboxes
    read_log: Callable[[Sandbox, int], Awaitable[str]]  # the last lines of a worker's own output


class Context:
    """One operation, or one event of a subscription: its loaders remember nothing from an earlier one."""

    def __init__(
        self, services: Services, principal: Principal, *, request_id: str, resume_after: str | None = None
    ) -> None:
        self.services = services
        self.principal = principal
        self.request_id = request_id
        self.resume_after = resume_after
        self._loaders: Loaders | None = None

    @property
    def loaders(self) -> Loaders:
        if self._loaders is None:
            services = self.services
            orchestrated = services.settings.orchestrator_enabled
            self._loaders = Loaders(services.db, self.principal, orchestrated=orchestrated, room=services.fleet)
        return self._loaders

    def forget(self) -> None:
        """After a change: what was loaded before may be old."""
        self._loaders = None

    async def authorise(self, rule: Rule, given: dict[str, Any]) -> None:
        """Let the caller of a root field pass, or raise."""
        if rule.role is None:
            auth.admit(self.principal, rule)
            return
        object_id = given.get(rule.of) if rule.of else None
        async with self.services.db.reading() as session:
            await auth.authorise(session, self.principal, rule, object_id)
