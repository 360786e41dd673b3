"""Find the tasks that others may have to wait for among all that were ever completed."""

from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.execute("CREATE INDEX tasks_incomplete ON tasks (id) WHERE status <> 'completed'")
