"""Let a launch wait for room: its moment stands in the row, which stays the same try however often it is asked for."""

from alembic import op

revision = "0006"
down_revision = "0005"

STATEMENTS = """
ALTER TABLE sandboxes ADD launch_at timestamptz;

UPDATE sandboxes SET launch_at = created_at;

ALTER TABLE sandboxes ALTER launch_at SET NOT NULL, ALTER launch_at SET DEFAULT omoi_now();
"""


def upgrade() -> None:
    for statement in STATEMENTS.split(";\n"):
        if statement.strip():
            op.execute(statement)
