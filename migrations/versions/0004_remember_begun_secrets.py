"""Remember with which secrets a sandbox's last texts may have begun, so that the next report finds the rest."""

from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.execute("ALTER TABLE sandboxes ADD begun_secrets jsonb")
