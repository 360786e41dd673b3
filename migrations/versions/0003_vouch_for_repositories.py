"""Remember which repositories an admin named: only these are opened with the server's own rights."""

from alembic import op

revision = "0003"
down_revision = "0002"

STATEMENTS = """
ALTER TABLE projects
    ADD repository_vouched boolean NOT NULL DEFAULT false,
    ADD CONSTRAINT projects_vouched_repository CHECK (NOT repository_vouched OR clone_url IS NOT NULL);

UPDATE projects SET repository_vouched = true FROM users
WHERE users.id = projects.created_by AND users.admin AND projects.clone_url IS NOT NULL;

ALTER TABLE projects ALTER repository_vouched DROP DEFAULT;
"""


def upgrade() -> None:
    for statement in STATEMENTS.split(";\n"):
        if statement.strip():
            op.execute(statement)
