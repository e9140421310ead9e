"""Device seconds of requests, and the price books that were in use."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_SECONDS = (
    "device_prefill_s",
    "device_plain_s",
    "device_verify_s",
    "device_propose_s",
    "device_host_s",
    "predicted_plain_s",
)


def upgrade() -> None:
    for name in _SECONDS:
        op.add_column("request_records", sa.Column(name, sa.Double))
    op.add_column("request_records", sa.Column("prices_version", sa.Text))
    op.create_table(
        "price_books",
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("version", sa.Text, nullable=False),
        sa.Column("content", sa.Text, nullable=False),
        sa.Column("taken_at", sa.Double, nullable=False),
    )
