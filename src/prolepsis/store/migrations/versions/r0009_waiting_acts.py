"""Acts of commands that had no key to sign the audit log with."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "audit_waiting",
        sa.Column("uid", sa.String(32), primary_key=True),
        sa.Column("event", sa.Text, nullable=False),
        sa.Column("left_at", sa.Double, nullable=False),
    )
