"""What eligibility learned of traffic classes."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "eligibility",
        sa.Column("kind", sa.String(8), primary_key=True),
        sa.Column("traffic_class", sa.String(256), primary_key=True),
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("kept_at", sa.Double, nullable=False),
    )
