"""Responses that tenants keep, and the events of those in the background."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "responses",
        sa.Column("response_id", sa.String(64), primary_key=True),
        *_columns(sa.Text, "tenant"),
        sa.Column("previous_id", sa.String(64)),
        *_columns(sa.String(16), "status"),
        *_columns(sa.BigInteger, "num_bytes"),
        *_columns(sa.Double, "created_at expires_at leased_until"),
        *_columns(sa.Text, "input document"),
    )
    op.create_index("ix_responses_tenant", "responses", ["tenant", "created_at"])
    op.create_index("ix_responses_status", "responses", ["status"])
    op.create_table(
        "response_events",
        sa.Column("response_id", sa.String(64), primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        *_columns(sa.Text, "event"),
    )


def _columns(kind: Any, names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, kind, nullable=False) for name in names.split()]
