"""Baselines of drift."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "drift_baselines",
        sa.Column("proposer", sa.String(64), primary_key=True),
        sa.Column("traffic_class", sa.String(256), primary_key=True),
        sa.Column("version", sa.String(256), primary_key=True),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("kept_at", sa.Double, nullable=False),
    )
