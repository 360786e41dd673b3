"""All tables. Foreign keys by name and no relationships, so that nothing is ever loaded unasked."""

from app.models.base import Base
from app.models.planning import (
    PUNCTUATION,
    AccessToken,
    Activity,
    AuditEntry,
    IdempotencyKey,
    LoopRun,
    Membership,
    Project,
    Stream,
    Task,
    TaskDependency,
    Ticket,
    TicketBlocker,
    User,
)
from app.models.running import Blob, Credential, Event, Installation, Message, Sandbox, Spending

__all__ = [
    "PUNCTUATION",
    "AccessToken",
    "Activity",
    "AuditEntry",
    "Base",
    "Blob",
    "Credential",
    "Event",
    "IdempotencyKey",
    "Installation",
    "LoopRun",
    "Membership",
    "Message",
    "Project",
    "Sandbox",
    "Spending",
    "Stream",
    "Task",
    "TaskDependency",
    "Ticket",
    "TicketBlocker",
    "User",
]
