"""The server's own state as clients see it."""

from datetime import datetime

import strawberry

from app import auth
from app.enums import HealthStatus
from resolvers import health as resolve
from schema.fields import described, query
from schema.rules import reached

described(HealthStatus, "How something is.")


@reached("A part of the server.")
class ComponentHealth:
    name: str = strawberry.field(description="Which part.")
    status: HealthStatus = strawberry.field(description="How it is.")
    detail: str | None = strawberry.field(description="A sentence, where there is something to say.")
    latency_ms: float | None = strawberry.field(description="How long it took to answer.")


@reached("A loop of the orchestrator.")
class LoopHealth:
    name: str = strawberry.field(description="Which loop.")
    last_run_at: datetime | None = strawberry.field(description="When it last ran, in any process.")
    last_duration_ms: float | None = strawberry.field(description="How long that took.")
    last_error: str | None = strawberry.field(description="What went wrong in it; null when nothing did.")
    runs: int = strawberry.field(description="How often that process has run it.")


@reached("How the server is.")
class SystemHealth:
    status: HealthStatus = strawberry.field(description="The worst of its parts.")
    version: str = strawberry.field(description="The server's version.")
    components: list[ComponentHealth] = strawberry.field(description="Its parts.")
    loops: list[LoopHealth] = strawberry.field(description="The orchestrator's loops.")
    pending_tasks: int | None = strawberry.field(description="Tasks that wait, of all projects; for admins.")
    active_sandboxes: int | None = strawberry.field(
        description="Sandboxes that have not ended, of all projects; for admins."
    )
    oldest_due_task_seconds: float | None = strawberry.field(
        description="For how long the oldest task has been due; for admins."
    )


@strawberry.type
class HealthQuery:
    health = query(resolve.read, SystemHealth, "How the server is.", rule=auth.SIGNED_IN)
