"""Further names of requests: those of their retries."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "request_retries",
        sa.Column("retry_id", sa.String(32), primary_key=True),
        sa.Column("answer_id", sa.Text, nullable=False),
        sa.Column("http_request_id", sa.Text, nullable=False),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("trace_id", sa.String(32)),
        sa.Column("retried_at", sa.Double, nullable=False),
    )
    for column in ("http_request_id", "tenant", "trace_id", "retried_at"):
        op.create_index(f"ix_request_retries_{column}", "request_retries", [column])
