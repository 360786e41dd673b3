"""Run sandboxes: their rows, their events, what is said to them, credentials and what it all costs."""

from alembic import op

revision = "0002"
down_revision = "0001"

FAILURES = """'spawn_failed', 'sandbox_lost', 'out_of_memory', 'killed', 'timed_out', 'stalled', 'agent_error',
    'checks_failed', 'budget_exhausted', 'credential_rejected', 'poison', 'cancelled'"""

STATEMENTS = f"""
CREATE TABLE installation (
    id integer PRIMARY KEY,
    deployment text NOT NULL,
    root_key_hash bytea NOT NULL,
    CONSTRAINT installation_one CHECK (id = 1)
);

CREATE TABLE credentials (
    user_id uuid NOT NULL REFERENCES users,
    kind varchar(32) NOT NULL,
    key_id text NOT NULL,
    sealed bytea NOT NULL,
    hint text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT omoi_now(),
    last_used_at timestamptz,
    PRIMARY KEY (user_id, kind),
    CONSTRAINT credentialkind CHECK (kind IN ('github', 'anthropic', 'daytona'))
);

ALTER TABLE tickets ADD branch text;

DROP INDEX tasks_pending;
ALTER TABLE tasks
    ADD result jsonb,
    ADD resume boolean NOT NULL DEFAULT false,
    ADD rank_at timestamptz NOT NULL DEFAULT omoi_now(),
    ADD deadline_at timestamptz,
    ADD created_by uuid REFERENCES users,
    ADD CONSTRAINT tasks_result CHECK ((result IS NOT NULL) = (status = 'completed'));
ALTER TABLE tasks ALTER resume DROP DEFAULT;
CREATE INDEX tasks_pending ON tasks (project_id, rank_at) WHERE status = 'pending';

CREATE TABLE sandboxes (
    id uuid PRIMARY KEY,
    project_id uuid NOT NULL REFERENCES projects,
    task_id uuid,
    attempt integer NOT NULL,
    name text NOT NULL UNIQUE,
    provider text NOT NULL,
    provider_id text,
    status varchar(32) NOT NULL,
    desired varchar(32) NOT NULL,
    stop_code varchar(32),
    stop_reason text,
    force_at timestamptz,
    branch text,
    resources jsonb NOT NULL,
    boot jsonb NOT NULL,
    failure_code varchar(32),
    failure_message text,
    launch_until timestamptz,
    lease_until timestamptz NOT NULL,
    deadline_at timestamptz NOT NULL,
    last_heartbeat_at timestamptz,
    first_heartbeat_at timestamptz,
    heartbeats integer NOT NULL,
    longest_gap_ms bigint NOT NULL,
    last_event_at timestamptz,
    accepted_through bigint NOT NULL,
    session_id text,
    transcript bytea,
    log text,
    gone_at timestamptz,
    input_tokens bigint NOT NULL,
    output_tokens bigint NOT NULL,
    cache_read_tokens bigint NOT NULL,
    cache_write_tokens bigint NOT NULL,
    cost_micro_usd bigint NOT NULL,
    budget_warned_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT omoi_now(),
    started_at timestamptz,
    finished_at timestamptz,
    FOREIGN KEY (project_id, task_id) REFERENCES tasks (project_id, id),
    UNIQUE (task_id, attempt),
    CONSTRAINT sandboxstatus CHECK (status IN ('provisioning', 'starting', 'running', 'waiting', 'stopping',
        'completed', 'failed', 'cancelled', 'lost')),
    CONSTRAINT desiredstate CHECK (desired IN ('run', 'stop')),
    CONSTRAINT stopcode CHECK (stop_code IN ({FAILURES})),
    CONSTRAINT failurecode CHECK (failure_code IN ({FAILURES})),
    CONSTRAINT sandboxes_finished CHECK (
        (status IN ('completed', 'failed', 'cancelled', 'lost')) = (finished_at IS NOT NULL)),
    CONSTRAINT sandboxes_failure CHECK ((failure_code IS NOT NULL) = (status IN ('failed', 'cancelled', 'lost'))),
    CONSTRAINT sandboxes_gone CHECK (gone_at IS NULL OR finished_at IS NOT NULL),
    CONSTRAINT sandboxes_stop CHECK ((desired = 'stop') = (stop_code IS NOT NULL))
);
CREATE INDEX sandboxes_project ON sandboxes (project_id, id);
CREATE INDEX sandboxes_live ON sandboxes (project_id)
    WHERE status NOT IN ('completed', 'failed', 'cancelled', 'lost');
CREATE INDEX sandboxes_machines ON sandboxes (provider) WHERE gone_at IS NULL;

CREATE TABLE events (
    stream_id uuid NOT NULL REFERENCES streams,
    seq bigint NOT NULL,
    id uuid NOT NULL,
    producer_seq bigint,
    hash bytea,
    type varchar(32) NOT NULL,
    source varchar(32) NOT NULL,
    turn integer,
    payload jsonb NOT NULL,
    occurred_at timestamptz NOT NULL DEFAULT omoi_now(),
    recorded_at timestamptz NOT NULL DEFAULT omoi_now(),
    PRIMARY KEY (stream_id, seq),
    UNIQUE (stream_id, producer_seq),
    CONSTRAINT eventsource CHECK (source IN ('agent', 'worker', 'system', 'guardian', 'user')),
    CONSTRAINT sandboxeventtype CHECK (type IN ('sandbox_status', 'started', 'system_message', 'assistant_message',
        'message', 'thinking', 'tool_use', 'tool_completed', 'user_tool_result', 'file_edited', 'subagent_started',
        'subagent_completed', 'check_started', 'check_completed', 'committed', 'pushed', 'phase_started',
        'phase_evaluated', 'phase_completed', 'message_delivered', 'interrupted', 'waiting', 'intervention',
        'budget_warning', 'log', 'error', 'completed'))
);
CREATE INDEX events_turn ON events (stream_id, turn, seq);
CREATE INDEX events_files ON events (stream_id, seq) WHERE type = 'file_edited';

CREATE TABLE blobs (
    sandbox_id uuid NOT NULL REFERENCES sandboxes,
    sha256 bytea NOT NULL,
    size_bytes bigint NOT NULL,
    content bytea NOT NULL,
    created_at timestamptz NOT NULL DEFAULT omoi_now(),
    PRIMARY KEY (sandbox_id, sha256)
);
ALTER TABLE blobs ALTER content SET STORAGE EXTERNAL;

CREATE TABLE messages (
    id uuid PRIMARY KEY,
    sandbox_id uuid NOT NULL REFERENCES sandboxes,
    kind varchar(32) NOT NULL,
    body text NOT NULL,
    author text NOT NULL,
    author_kind varchar(32) NOT NULL,
    author_id uuid NOT NULL,
    status varchar(32) NOT NULL,
    delivered_in_turn integer,
    created_at timestamptz NOT NULL DEFAULT omoi_now(),
    delivered_at timestamptz,
    expires_at timestamptz,
    CONSTRAINT messagekind CHECK (kind IN ('user', 'guardian_nudge', 'interrupt', 'system', 'collaboration')),
    CONSTRAINT principalkind CHECK (author_kind IN ('user', 'service', 'sandbox', 'guardian', 'system')),
    CONSTRAINT messagestatus CHECK (status IN ('queued', 'sent', 'delivered', 'expired', 'cancelled')),
    CONSTRAINT messages_delivered CHECK ((status = 'delivered') = (delivered_at IS NOT NULL))
);
CREATE INDEX messages_sandbox ON messages (sandbox_id, id);
CREATE INDEX messages_waiting ON messages (sandbox_id) WHERE status IN ('queued', 'sent');

CREATE TABLE spendings (
    project_id uuid PRIMARY KEY REFERENCES projects,
    cost_micro_usd bigint NOT NULL
);
"""


def upgrade() -> None:
    for statement in STATEMENTS.split(";\n"):
        if statement.strip():
            op.execute(statement)
