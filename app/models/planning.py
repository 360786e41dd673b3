"""The tables of people, of what is wanted, and of what is remembered about changes."""

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Computed,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB, TSVECTOR
from sqlalchemy.orm import Mapped, mapped_column

from app import ids
from app.enums import (
    FailureCode,
    PrincipalKind,
    Priority,
    RepositoryHost,
    Role,
    TaskPhase,
    TaskStatus,
    TicketKind,
    TicketStatus,
    TokenKind,
)
from app.models.base import Base, moment, new_id, stored

# What parts words when people search: main.py is found by `py`, 2026-01-31 by `31`.
PUNCTUATION = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~“”„‘’‚«»‹›–—…·•¿¡、。「」（）！？：；，"  # noqa: RUF001
_IN_SQL = PUNCTUATION.replace("'", "''")


class User(Base):
    __tablename__ = "users"
    __table_args__ = (Index("users_email_key", text("lower(email)"), unique=True),)

    id: Mapped[UUID] = new_id()
    kind: Mapped[PrincipalKind] = mapped_column(stored(PrincipalKind))
    email: Mapped[str]
    name: Mapped[str]
    admin: Mapped[bool] = mapped_column(default=False)
    created_at: Mapped[datetime] = moment()


class AccessToken(Base):
    __tablename__ = "access_tokens"
    __table_args__ = (
        CheckConstraint("kind = 'access' OR expires_at IS NOT NULL", name="access_tokens_short_lived"),
        Index("access_tokens_user", "user_id", "id"),
    )

    id: Mapped[UUID] = new_id()
    kind: Mapped[TokenKind] = mapped_column(stored(TokenKind))
    user_id: Mapped[UUID] = mapped_column(ForeignKey("users.id"))
    name: Mapped[str]
    hash: Mapped[bytes] = mapped_column(unique=True)
    created_at: Mapped[datetime] = moment()
    expires_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]


class Project(Base):
    __tablename__ = "projects"
    __table_args__ = (
        CheckConstraint("(repository_host IS NULL) = (clone_url IS NULL)", name="projects_repository_whole"),
        CheckConstraint("(repository_host = 'github') = (repository_owner IS NOT NULL)", name="projects_github_owner"),
        CheckConstraint("(repository_owner IS NULL) = (repository_name IS NULL)", name="projects_github_name"),
        CheckConstraint("NOT repository_vouched OR clone_url IS NOT NULL", name="projects_vouched_repository"),
    )

    id: Mapped[UUID] = new_id()
    name: Mapped[str]
    description: Mapped[str]
    repository_host: Mapped[RepositoryHost | None] = mapped_column(stored(RepositoryHost))
    repository_owner: Mapped[str | None]
    repository_name: Mapped[str | None]
    repository_vouched: Mapped[bool] = mapped_column(default=False)  # an admin named it
    clone_url: Mapped[str | None]
    default_branch: Mapped[str]
    settings: Mapped[dict[str, Any]]
    last_ticket_number: Mapped[int] = mapped_column(default=0)
    created_by: Mapped[UUID] = mapped_column(ForeignKey("users.id"))
    archived_at: Mapped[datetime | None]
    created_at: Mapped[datetime] = moment()
    updated_at: Mapped[datetime] = moment()


class Membership(Base):
    __tablename__ = "memberships"
    __table_args__ = (Index("memberships_user", "user_id", "project_id"),)

    project_id: Mapped[UUID] = mapped_column(ForeignKey("projects.id"), primary_key=True)
    user_id: Mapped[UUID] = mapped_column(ForeignKey("users.id"), primary_key=True)
    role: Mapped[Role] = mapped_column(stored(Role))
    created_at: Mapped[datetime] = moment()


class Ticket(Base):
    __tablename__ = "tickets"
    __table_args__ = (
        UniqueConstraint("project_id", "number"),
        UniqueConstraint("project_id", "id"),
        Index("tickets_status", "project_id", "status", "number"),
        Index("tickets_search", "search", postgresql_using="gin"),
    )

    id: Mapped[UUID] = new_id()
    project_id: Mapped[UUID] = mapped_column(ForeignKey("projects.id"))
    number: Mapped[int]
    title: Mapped[str]
    description: Mapped[str]
    kind: Mapped[TicketKind] = mapped_column(stored(TicketKind))
    status: Mapped[TicketStatus] = mapped_column(stored(TicketStatus))
    priority: Mapped[Priority] = mapped_column(stored(Priority))
    blocked_reason: Mapped[str | None]
    branch: Mapped[str | None]
    created_by: Mapped[UUID | None] = mapped_column(ForeignKey("users.id"))
    created_at: Mapped[datetime] = moment()
    updated_at: Mapped[datetime] = moment()
    search: Mapped[Any] = mapped_column(
        TSVECTOR,
        Computed(
            "to_tsvector('simple', translate(title || ' ' || description, "
            f"'{_IN_SQL}', repeat(' ', {len(PUNCTUATION)})))",
            persisted=True,
        ),
        deferred=True,
    )


class TicketBlocker(Base):
    __tablename__ = "ticket_blockers"
    __table_args__ = (
        ForeignKeyConstraint(["project_id", "ticket_id"], ["tickets.project_id", "tickets.id"]),
        ForeignKeyConstraint(["project_id", "blocker_id"], ["tickets.project_id", "tickets.id"]),
        CheckConstraint("ticket_id <> blocker_id", name="ticket_blockers_not_itself"),
        Index("ticket_blockers_blocker", "blocker_id"),
    )

    project_id: Mapped[UUID]
    ticket_id: Mapped[UUID] = mapped_column(primary_key=True)
    blocker_id: Mapped[UUID] = mapped_column(primary_key=True)


class Task(Base):
    __tablename__ = "tasks"
    __table_args__ = (
        ForeignKeyConstraint(["project_id", "ticket_id"], ["tickets.project_id", "tickets.id"]),
        UniqueConstraint("project_id", "id"),
        Index("tasks_ticket", "ticket_id", "id"),
        Index("tasks_pending", "project_id", "rank_at", postgresql_where=text("status = 'pending'")),
        Index("tasks_incomplete", "id", postgresql_where=text("status <> 'completed'")),
        CheckConstraint(
            "(status IN ('completed', 'failed', 'cancelled')) = (finished_at IS NOT NULL)", name="tasks_finished"
        ),
        CheckConstraint("(failure_code IS NOT NULL) = (status IN ('failed', 'cancelled'))", name="tasks_failure"),
        CheckConstraint("attempt BETWEEN 0 AND max_attempts", name="tasks_attempts"),
        CheckConstraint("(result IS NOT NULL) = (status = 'completed')", name="tasks_result"),
    )

    id: Mapped[UUID] = new_id()
    project_id: Mapped[UUID] = mapped_column(ForeignKey("projects.id"))
    ticket_id: Mapped[UUID]
    title: Mapped[str]
    description: Mapped[str]
    phase: Mapped[TaskPhase] = mapped_column(stored(TaskPhase))
    status: Mapped[TaskStatus] = mapped_column(stored(TaskStatus), default=TaskStatus.PENDING)
    priority: Mapped[Priority] = mapped_column(stored(Priority))
    attempt: Mapped[int] = mapped_column(default=0)
    max_attempts: Mapped[int]
    failure_code: Mapped[FailureCode | None] = mapped_column(stored(FailureCode))
    failure_message: Mapped[str | None]
    result: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))
    resume: Mapped[bool] = mapped_column(default=False)  # the next try goes on where the last one ended
    due_at: Mapped[datetime] = moment()
    rank_at: Mapped[datetime] = moment()  # its place in the queue: older comes first, and age is not all that ages it
    deadline_at: Mapped[datetime | None]
    created_by: Mapped[UUID | None] = mapped_column(ForeignKey("users.id"))
    created_at: Mapped[datetime] = moment()
    assigned_at: Mapped[datetime | None]
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]


class TaskDependency(Base):
    __tablename__ = "task_dependencies"
    __table_args__ = (
        ForeignKeyConstraint(["project_id", "task_id"], ["tasks.project_id", "tasks.id"]),
        ForeignKeyConstraint(["project_id", "depends_on_id"], ["tasks.project_id", "tasks.id"]),
        CheckConstraint("task_id <> depends_on_id", name="task_dependencies_not_itself"),
        Index("task_dependencies_depends_on", "depends_on_id"),
    )

    project_id: Mapped[UUID]
    task_id: Mapped[UUID] = mapped_column(primary_key=True)
    depends_on_id: Mapped[UUID] = mapped_column(primary_key=True)


class Stream(Base):
    """A numbered, append-only sequence. Its row is locked before numbering, so seq order is commit order."""

    __tablename__ = "streams"
    __table_args__ = (CheckConstraint("first_seq >= 1 AND first_seq <= last_seq + 1", name="streams_bounds"),)

    id: Mapped[UUID] = mapped_column(primary_key=True)  # the id of the project or the sandbox whose stream it is
    project_id: Mapped[UUID] = mapped_column(ForeignKey("projects.id"))
    epoch: Mapped[str]
    first_seq: Mapped[int] = mapped_column(BigInteger, default=1)
    last_seq: Mapped[int] = mapped_column(BigInteger, default=0)
    size_bytes: Mapped[int] = mapped_column(BigInteger, default=0)
    digest: Mapped[bytes]


class Activity(Base):
    __tablename__ = "activities"

    stream_id: Mapped[UUID] = mapped_column(ForeignKey("streams.id"), primary_key=True)
    seq: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    id: Mapped[UUID] = mapped_column(default=ids.new)
    verb: Mapped[str]
    summary: Mapped[str]
    actor: Mapped[str]
    actor_kind: Mapped[PrincipalKind] = mapped_column(stored(PrincipalKind))
    subject_kind: Mapped[str]
    subject_id: Mapped[UUID]
    occurred_at: Mapped[datetime] = moment()


class AuditEntry(Base):
    """Who did what, for ever. Rows are only ever added."""

    __tablename__ = "audit_log"
    __table_args__ = (Index("audit_log_object", "object_kind", "object_id"), Index("audit_log_project", "project_id"))

    id: Mapped[UUID] = new_id()
    project_id: Mapped[UUID | None] = mapped_column(ForeignKey("projects.id"))
    actor_kind: Mapped[PrincipalKind] = mapped_column(stored(PrincipalKind))
    actor_id: Mapped[UUID]
    action: Mapped[str]
    object_kind: Mapped[str]
    object_id: Mapped[UUID]
    request_id: Mapped[str]
    occurred_at: Mapped[datetime] = moment()


class IdempotencyKey(Base):
    __tablename__ = "idempotency_keys"
    __table_args__ = (Index("idempotency_keys_created", "created_at"),)

    principal_id: Mapped[UUID] = mapped_column(primary_key=True)
    operation: Mapped[str] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(primary_key=True)
    input_hash: Mapped[bytes]
    object_id: Mapped[UUID]
    created_at: Mapped[datetime] = moment()


class LoopRun(Base):
    """The last run of each of the orchestrator's loops, one row for each process that runs it."""

    __tablename__ = "loop_runs"

    name: Mapped[str] = mapped_column(primary_key=True)
    process: Mapped[str] = mapped_column(primary_key=True)
    last_run_at: Mapped[datetime] = moment()
    last_duration_ms: Mapped[float]
    last_error: Mapped[str | None]
    runs: Mapped[int]
