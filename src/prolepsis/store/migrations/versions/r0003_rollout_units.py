"""Keys that a rollout's stage has counted."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "rollout_units",
        sa.Column("rollout_id", sa.String(128), primary_key=True),
        sa.Column("run", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("stage", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("unit", sa.String(16), primary_key=True),
        sa.Column("late", sa.Boolean, primary_key=True),
        sa.Column("counted_at", sa.Double, nullable=False),
    )
