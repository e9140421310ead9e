"""What the device cost, period by period."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "cost_periods",
        sa.Column("replica", sa.String(32), primary_key=True),
        sa.Column("started_at", sa.Double, primary_key=True, autoincrement=False),
        sa.Column("ended_at", sa.Double, nullable=False),
        sa.Column("price", sa.Text),
        sa.Column("currency", sa.String(3)),
        sa.Column("held_s", sa.Double, nullable=False),
        sa.Column("used_s", sa.Double, nullable=False),
        sa.Column("num_output_tokens", sa.BigInteger, nullable=False),
        sa.Column("amount_paid", sa.Double),
        sa.Column("amount_used", sa.Double),
    )
