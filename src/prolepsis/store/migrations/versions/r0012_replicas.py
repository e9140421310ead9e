"""What replicas know of each other: who is there, whose turn a work is, and the allowances that they share."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "replicas",
        sa.Column("replica", sa.String(128), primary_key=True),
        sa.Column("facts", sa.Text, nullable=False),
        sa.Column("started_at", sa.Double, nullable=False),
        sa.Column("seen_at", sa.Double, nullable=False),
    )
    op.create_table(
        "turns",
        sa.Column("work", sa.String(128), primary_key=True),
        sa.Column("taken_at", sa.Double, nullable=False),
    )
    op.create_table(
        "allowances",
        sa.Column("kind", sa.String(16), primary_key=True),
        sa.Column("owner", sa.String(300), primary_key=True),
        sa.Column("per_minute", sa.Double, nullable=False),
        sa.Column("level", sa.Double, nullable=False),
        sa.Column("filled_at", sa.Double, nullable=False),
    )
