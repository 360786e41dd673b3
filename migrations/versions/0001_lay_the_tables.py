"""Lay the tables."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None


CLOCK = """
CREATE FUNCTION omoi_now() RETURNS timestamptz LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT now() + coalesce(nullif(current_setting('omoi.clock_shift', true), ''), '0')::interval
$$
"""


# Punctuation parts words, so that main.py is found by `py` and 2026-01-31 by `31`.
PUNCTUATION = "!\"#$%&''()*+,-./:;<=>?@[\\]^_`{|}~“”„‘’‚«»‹›–—…·•¿¡、。「」（）！？：；，"  # noqa: RUF001
SEARCHED = f"to_tsvector('simple', translate(title || ' ' || description, '{PUNCTUATION}', repeat(' ', 60)))"


def upgrade() -> None:
    op.execute(CLOCK)
    op.create_table(
        "idempotency_keys",
        sa.Column("principal_id", sa.Uuid(), nullable=False),
        sa.Column("operation", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("input_hash", sa.LargeBinary(), nullable=False),
        sa.Column("object_id", sa.Uuid(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("omoi_now()"), nullable=False),
        sa.PrimaryKeyConstraint("principal_id", "operation", "key"),
    )
    op.create_index("idempotency_keys_created", "idempotency_keys", ["created_at"], unique=False)
    op.create_table(
        "loop_runs",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("process", sa.Text(), nullable=False),
        sa.Column("last_run_at", sa.DateTime(timezone=True), server_default=sa.text("omoi_now()"), nullable=False),
        sa.Column("last_duration_ms", sa.Double(), nullable=False),
        sa.Column("last_error", sa.Text(), nullable=True),
        sa.Column("runs", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("name", "process"),
    )
    op.create_table(
        "users",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column(
            "kind",
            sa.Enum(
                "user",
                "service",
                "sandbox",
                "guardian",
                "system",
                name="principalkind",
                native_enum=False,
                create_constraint=True,
                length=32,
            ),
            nullable=False,
        ),
        sa.Column("email", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("admin", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("omoi_now()"), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("users_email_key", "users", [sa.literal_column("lower(email)")], unique=True)
    op.create_table(
        "access_tokens",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column(
            "kind",
            sa.Enum(
                "access", "session", "sign_in", name="tokenkind", native_enum=False, create_constraint=True, length=32
            ),
            nullable=False,
        ),
        sa.Column("user_id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("omoi_now()"), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("last_used_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("kind = 'access' OR expires_at IS NOT NULL", name="access_tokens_short_lived"),
        sa.ForeignKeyConstraint(
            ["user_id"],
            ["users.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("hash"),
    )
    op.create_index("access_tokens_user", "access_tokens", ["user_id", "id"], unique=False)
    op.create_table(
        "projects",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column(
            "repository_host",
            sa.Enum("github", "git", name="repositoryhost", native_enum=False, create_constraint=True, length=32),
            nullable=True,
        ),
        sa.Column("repository_owner", sa.Text(), nullable=True),
        sa.Column("repository_name", sa.Text(), nullable=True),
        sa.Column("clone_url", sa.Text(), nullable=True),
        sa.Column("default_branch", sa.Text(), nullable=False),
        sa.Column("settings", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("last_ticket_number", sa.Integer(), nullable=False),
        sa.Column("created_by", sa.Uuid(), nullable=False),
        sa.Column("archived_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("omoi_now()"), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=sa.text("omoi_now()"), nullable=False),
        sa.CheckConstraint(
            "(repository_host = 'github') = (repository_owner IS NOT NULL)", name="projects_github_owner"
        ),
        sa.CheckConstraint("(repository_host IS NULL) = (clone_url IS NULL)", name="projects_repository_whole"),
        sa.CheckConstraint("(repository_owner IS NULL) = (repository_name IS NULL)", name="projects_github_name"),
        sa.ForeignKeyConstraint(
            ["created_by"],
            ["users.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "audit_log",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("project_id", sa.Uuid(), nullable=True),
        sa.Column(
            "actor_kind",
            sa.Enum(
                "user",
                "service",
                "sandbox",
                "guardian",
                "system",
                name="principalkind",
                native_enum=False,
                create_constraint=True,
                length=32,
            ),
            nullable=False,
        ),
        sa.Column("actor_id", sa.Uuid(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("object_kind", sa.Text(), nullable=False),
        sa.Column("object_id", sa.Uuid(), nullable=False),
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("occurred_at", sa.DateTime(timezone=True), server_default=sa.text("omoi_now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["project_id"],
            ["projects.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("audit_log_object", "audit_log", ["object_kind", "object_id"], unique=False)
    op.create_index("audit_log_project", "audit_log", ["project_id"], unique=False)
    op.create_table(
        "memberships",
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column("user_id", sa.Uuid(), nullable=False),
        sa.Column(
            "role",
            sa.Enum("viewer", "member", "owner", name="role", native_enum=False, create_constraint=True, length=32),
            nullable=False,
        ),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("omoi_now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["project_id"],
            ["projects.id"],
        ),
        sa.ForeignKeyConstraint(
            ["user_id"],
            ["users.id"],
        ),
        sa.PrimaryKeyConstraint("project_id", "user_id"),
    )
    op.create_index("memberships_user", "memberships", ["user_id", "project_id"], unique=False)
    op.create_table(
        "streams",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column("epoch", sa.Text(), nullable=False),
        sa.Column("first_seq", sa.BigInteger(), nullable=False),
        sa.Column("last_seq", sa.BigInteger(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.CheckConstraint("first_seq >= 1 AND first_seq <= last_seq + 1", name="streams_bounds"),
        sa.ForeignKeyConstraint(
            ["project_id"],
            ["projects.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "tickets",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column(
            "kind",
            sa.Enum(
                "feature",
                "bug",
                "hotfix",
                "refactor",
                "docs",
                "test",
                "chore",
                name="ticketkind",
                native_enum=False,
                create_constraint=True,
                length=32,
            ),
            nullable=False,
        ),
        sa.Column(
            "status",
            sa.Enum(
                "backlog",
                "ready",
                "in_progress",
                "in_review",
                "done",
                "cancelled",
                name="ticketstatus",
                native_enum=False,
                create_constraint=True,
                length=32,
            ),
            nullable=False,
        ),
        sa.Column(
            "priority",
            sa.Enum(
                "critical",
                "high",
                "medium",
                "low",
                name="priority",
                native_enum=False,
                create_constraint=True,
                length=32,
            ),
            nullable=False,
        ),
        sa.Column("blocked_reason", sa.Text(), nullable=True),
        sa.Column("created_by", sa.Uuid(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("omoi_now()"), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=sa.text("omoi_now()"), nullable=False),
        sa.Column(
            "search",
            postgresql.TSVECTOR(),
            sa.Computed(SEARCHED, persisted=True),
            nullable=False,
        ),
        sa.ForeignKeyConstraint(
            ["created_by"],
            ["users.id"],
        ),
        sa.ForeignKeyConstraint(
            ["project_id"],
            ["projects.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("project_id", "id"),
        sa.UniqueConstraint("project_id", "number"),
    )
    op.create_index("tickets_search", "tickets", ["search"], unique=False, postgresql_using="gin")
    op.create_index("tickets_status", "tickets", ["project_id", "status", "number"], unique=False)
    op.create_table(
        "activities",
        sa.Column("stream_id", sa.Uuid(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("verb", sa.Text(), nullable=False),
        sa.Column("summary", sa.Text(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column(
            "actor_kind",
            sa.Enum(
                "user",
                "service",
                "sandbox",
                "guardian",
                "system",
                name="principalkind",
                native_enum=False,
                create_constraint=True,
                length=32,
            ),
            nullable=False,
        ),
        sa.Column("subject_kind", sa.Text(), nullable=False),
        sa.Column("subject_id", sa.Uuid(), nullable=False),
        sa.Column("occurred_at", sa.DateTime(timezone=True), server_default=sa.text("omoi_now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["stream_id"],
            ["streams.id"],
        ),
        sa.PrimaryKeyConstraint("stream_id", "seq"),
    )
    op.create_table(
        "tasks",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column("ticket_id", sa.Uuid(), nullable=False),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column(
            "phase",
            sa.Enum(
                "explore",
                "requirements",
                "design",
                "implementation",
                "testing",
                "review",
                name="taskphase",
                native_enum=False,
                create_constraint=True,
                length=32,
            ),
            nullable=False,
        ),
        sa.Column(
            "status",
            sa.Enum(
                "pending",
                "assigned",
                "running",
                "completed",
                "failed",
                "cancelled",
                name="taskstatus",
                native_enum=False,
                create_constraint=True,
                length=32,
            ),
            nullable=False,
        ),
        sa.Column(
            "priority",
            sa.Enum(
                "critical",
                "high",
                "medium",
                "low",
                name="priority",
                native_enum=False,
                create_constraint=True,
                length=32,
            ),
            nullable=False,
        ),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("max_attempts", sa.Integer(), nullable=False),
        sa.Column(
            "failure_code",
            sa.Enum(
                "spawn_failed",
                "sandbox_lost",
                "out_of_memory",
                "killed",
                "timed_out",
                "stalled",
                "agent_error",
                "checks_failed",
                "budget_exhausted",
                "credential_rejected",
                "poison",
                "cancelled",
                name="failurecode",
                native_enum=False,
                create_constraint=True,
                length=32,
            ),
            nullable=True,
        ),
        sa.Column("failure_message", sa.Text(), nullable=True),
        sa.Column("due_at", sa.DateTime(timezone=True), server_default=sa.text("omoi_now()"), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("omoi_now()"), nullable=False),
        sa.Column("assigned_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("(failure_code IS NOT NULL) = (status IN ('failed', 'cancelled'))", name="tasks_failure"),
        sa.CheckConstraint(
            "(status IN ('completed', 'failed', 'cancelled')) = (finished_at IS NOT NULL)", name="tasks_finished"
        ),
        sa.CheckConstraint("attempt BETWEEN 0 AND max_attempts", name="tasks_attempts"),
        sa.ForeignKeyConstraint(
            ["project_id", "ticket_id"],
            ["tickets.project_id", "tickets.id"],
        ),
        sa.ForeignKeyConstraint(
            ["project_id"],
            ["projects.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("project_id", "id"),
    )
    op.create_index(
        "tasks_pending", "tasks", ["status", "id"], unique=False, postgresql_where=sa.text("status = 'pending'")
    )
    op.create_index("tasks_ticket", "tasks", ["ticket_id", "id"], unique=False)
    op.create_table(
        "ticket_blockers",
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column("ticket_id", sa.Uuid(), nullable=False),
        sa.Column("blocker_id", sa.Uuid(), nullable=False),
        sa.CheckConstraint("ticket_id <> blocker_id", name="ticket_blockers_not_itself"),
        sa.ForeignKeyConstraint(
            ["project_id", "blocker_id"],
            ["tickets.project_id", "tickets.id"],
        ),
        sa.ForeignKeyConstraint(
            ["project_id", "ticket_id"],
            ["tickets.project_id", "tickets.id"],
        ),
        sa.PrimaryKeyConstraint("ticket_id", "blocker_id"),
    )
    op.create_index("ticket_blockers_blocker", "ticket_blockers", ["blocker_id"], unique=False)
    op.create_table(
        "task_dependencies",
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column("task_id", sa.Uuid(), nullable=False),
        sa.Column("depends_on_id", sa.Uuid(), nullable=False),
        sa.CheckConstraint("task_id <> depends_on_id", name="task_dependencies_not_itself"),
        sa.ForeignKeyConstraint(
            ["project_id", "depends_on_id"],
            ["tasks.project_id", "tasks.id"],
        ),
        sa.ForeignKeyConstraint(
            ["project_id", "task_id"],
            ["tasks.project_id", "tasks.id"],
        ),
        sa.PrimaryKeyConstraint("task_id", "depends_on_id"),
    )
    op.create_index("task_dependencies_depends_on", "task_dependencies", ["depends_on_id"], unique=False)
