"""The tables of the work itself: sandboxes, their events, what is said to them, and what they cost."""

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, ForeignKeyConstraint, Index, UniqueConstraint, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from app import ids
from app.enums import (
    CredentialKind,
    DesiredState,
    EventSource,
    FailureCode,
    MessageKind,
    MessageStatus,
    PrincipalKind,
    SandboxEventType,
    SandboxStatus,
)
from app.models.base import Base, moment, new_id, stored

ENDED = "'completed', 'failed', 'cancelled', 'lost'"


class Installation(Base):
    """The one row that says which installation this database belongs to."""

    __tablename__ = "installation"
    __table_args__ = (CheckConstraint("id = 1", name="installation_one"),)

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    deployment: Mapped[str]
    root_key_hash: Mapped[bytes]


class Credential(Base):
    __tablename__ = "credentials"

    user_id: Mapped[UUID] = mapped_column(ForeignKey("users.id"), primary_key=True)
    kind: Mapped[CredentialKind] = mapped_column(stored(CredentialKind), primary_key=True)
    key_id: Mapped[str]
    sealed: Mapped[bytes]
    hint: Mapped[str]
    created_at: Mapped[datetime] = moment()
    last_used_at: Mapped[datetime | None]


class Sandbox(Base):
    """One try at a task. The row commits before its machine is asked for, and outlives it."""

    __tablename__ = "sandboxes"
    __table_args__ = (
        ForeignKeyConstraint(["project_id", "task_id"], ["tasks.project_id", "tasks.id"]),
        UniqueConstraint("task_id", "attempt"),
        Index("sandboxes_project", "project_id", "id"),
        Index("sandboxes_live", "project_id", postgresql_where=text(f"status NOT IN ({ENDED})")),
        Index("sandboxes_machines", "provider", postgresql_where=text("gone_at IS NULL")),
        CheckConstraint(f"(status IN ({ENDED})) = (finished_at IS NOT NULL)", name="sandboxes_finished"),
        CheckConstraint(
            "(failure_code IS NOT NULL) = (status IN ('failed', 'cancelled', 'lost'))", name="sandboxes_failure"
        ),
        CheckConstraint("gone_at IS NULL OR finished_at IS NOT NULL", name="sandboxes_gone"),
        CheckConstraint("(desired = 'stop') = (stop_code IS NOT NULL)", name="sandboxes_stop"),
    )

    id: Mapped[UUID] = new_id()
    project_id: Mapped[UUID] = mapped_column(ForeignKey("projects.id"))
    task_id: Mapped[UUID | None]
    attempt: Mapped[int]
    name: Mapped[str] = mapped_column(unique=True)
    provider: Mapped[str]
    place: Mapped[str | None]  # where its machine is made, for a provider whose machines each server has for itself
    provider_id: Mapped[str | None]
    status: Mapped[SandboxStatus] = mapped_column(stored(SandboxStatus), default=SandboxStatus.PROVISIONING)
    desired: Mapped[DesiredState] = mapped_column(stored(DesiredState), default=DesiredState.RUN)
    stop_code: Mapped[FailureCode | None] = mapped_column(stored(FailureCode, checked="stopcode"))
    stop_reason: Mapped[str | None]
    force_at: Mapped[datetime | None]  # when a wish to stop becomes a kill
    branch: Mapped[str | None]
    resources: Mapped[dict[str, Any]]
    boot: Mapped[list[dict[str, Any]]] = mapped_column(JSONB, default=list)
    failure_code: Mapped[FailureCode | None] = mapped_column(stored(FailureCode))
    failure_message: Mapped[str | None]
    launch_at: Mapped[datetime] = moment()  # when its machine is to be asked for, or was asked for last
    launch_until: Mapped[datetime | None]  # until when one process has its launch in hand
    lease_until: Mapped[datetime]
    deadline_at: Mapped[datetime]
    last_heartbeat_at: Mapped[datetime | None]
    first_heartbeat_at: Mapped[datetime | None]
    heartbeats: Mapped[int] = mapped_column(default=0)
    longest_gap_ms: Mapped[int] = mapped_column(BigInteger, default=0)
    last_event_at: Mapped[datetime | None]
    accepted_through: Mapped[int] = mapped_column(BigInteger, default=0)  # the worker's own numbering
    begun_secrets: Mapped[list[Any] | None] = mapped_column(JSONB(none_as_null=True))  # which its texts may go on with
    exposed: Mapped[bool | None]  # nothing keeps it from the machine that it was launched on
    session_id: Mapped[str | None]
    transcript: Mapped[bytes | None]  # the blob's hash
    log: Mapped[str | None] = mapped_column(deferred=True)  # kept when the machine goes
    gone_at: Mapped[datetime | None]  # when its machine was seen to be no more
    input_tokens: Mapped[int] = mapped_column(BigInteger, default=0)
    output_tokens: Mapped[int] = mapped_column(BigInteger, default=0)
    cache_read_tokens: Mapped[int] = mapped_column(BigInteger, default=0)
    cache_write_tokens: Mapped[int] = mapped_column(BigInteger, default=0)
    cost_micro_usd: Mapped[int] = mapped_column(BigInteger, default=0)
    budget_warned_at: Mapped[datetime | None]
    created_at: Mapped[datetime] = moment()
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]


class Event(Base):
    """What happened in a sandbox. Rows are only ever added."""

    __tablename__ = "events"
    __table_args__ = (
        UniqueConstraint("stream_id", "producer_seq"),
        Index("events_turn", "stream_id", "turn", "seq"),
        Index("events_files", "stream_id", "seq", postgresql_where=text("type = 'file_edited'")),
    )

    stream_id: Mapped[UUID] = mapped_column(ForeignKey("streams.id"), primary_key=True)
    seq: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    id: Mapped[UUID] = mapped_column(default=ids.new)
    producer_seq: Mapped[int | None] = mapped_column(BigInteger)  # none for what the server wrote
    hash: Mapped[bytes | None]  # of what the worker sent under that number
    type: Mapped[SandboxEventType] = mapped_column(stored(SandboxEventType))
    source: Mapped[EventSource] = mapped_column(stored(EventSource))
    turn: Mapped[int | None]
    payload: Mapped[dict[str, Any]]
    occurred_at: Mapped[datetime] = moment()
    recorded_at: Mapped[datetime] = moment()


class Blob(Base):
    """What is too large for an event, by the hash of what the worker sent; gzip of what may be kept of it."""

    __tablename__ = "blobs"

    sandbox_id: Mapped[UUID] = mapped_column(ForeignKey("sandboxes.id"), primary_key=True)
    sha256: Mapped[bytes] = mapped_column(primary_key=True)
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    content: Mapped[bytes] = mapped_column(deferred=True)
    created_at: Mapped[datetime] = moment()


class Message(Base):
    """Something that is said to a running agent."""

    __tablename__ = "messages"
    __table_args__ = (
        Index("messages_sandbox", "sandbox_id", "id"),
        Index("messages_waiting", "sandbox_id", postgresql_where=text("status IN ('queued', 'sent')")),
        CheckConstraint("(status = 'delivered') = (delivered_at IS NOT NULL)", name="messages_delivered"),
    )

    id: Mapped[UUID] = new_id()
    sandbox_id: Mapped[UUID] = mapped_column(ForeignKey("sandboxes.id"))
    kind: Mapped[MessageKind] = mapped_column(stored(MessageKind))
    body: Mapped[str]
    author: Mapped[str]
    author_kind: Mapped[PrincipalKind] = mapped_column(stored(PrincipalKind))
    author_id: Mapped[UUID]
    status: Mapped[MessageStatus] = mapped_column(stored(MessageStatus), default=MessageStatus.QUEUED)
    delivered_in_turn: Mapped[int | None]
    created_at: Mapped[datetime] = moment()
    delivered_at: Mapped[datetime | None]
    expires_at: Mapped[datetime | None]


class Spending(Base):
    """What a project has cost so far: the sum over its sandboxes, kept so that a budget is read in one row."""

    __tablename__ = "spendings"

    project_id: Mapped[UUID] = mapped_column(ForeignKey("projects.id"), primary_key=True)
    cost_micro_usd: Mapped[int] = mapped_column(BigInteger, default=0)
