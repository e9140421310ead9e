"""Evidence of rollouts, by replica."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "rollout_evidence",
        sa.Column("rollout_id", sa.String(128), primary_key=True),
        sa.Column("replica", sa.String(32), primary_key=True),
        sa.Column("evidence", sa.Text, nullable=False),
        sa.Column("kept_at", sa.Double, nullable=False),
    )
