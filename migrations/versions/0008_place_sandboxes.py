"""Say where a sandbox's machine is, for providers whose machines each server has for itself."""

from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.execute("ALTER TABLE sandboxes ADD place text")
