"""Tell sandboxes that nothing keeps from their machine, so that no real model answers in them by accident."""

from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.execute("ALTER TABLE sandboxes ADD exposed boolean")
