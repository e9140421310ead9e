"""Controls that replicas share."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "controls",
        sa.Column("kind", sa.String(32), primary_key=True),
        sa.Column("name", sa.String(400), primary_key=True),
        sa.Column("value", sa.Text, nullable=False),
        sa.Column("changed_at", sa.Double, nullable=False),
    )
