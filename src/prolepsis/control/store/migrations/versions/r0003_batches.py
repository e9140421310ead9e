"""Files of tenants, and batches of requests."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "files",
        _key("file_id"),
        *_columns(sa.Text, "tenant purpose filename"),
        sa.Column("num_bytes", sa.BigInteger),
        *_columns(sa.Double, "created_at expires_at"),
        sa.Column("batch_id", sa.String(64)),
        sa.Column("line_state", sa.String(16)),
    )
    op.create_index("ix_files_tenant", "files", ["tenant"])
    op.create_table("file_parts", _key("file_id"), _number(), *_columns(sa.LargeBinary, "content"))
    op.create_table(
        "batches",
        _key("batch_id"),
        *_columns(sa.Text, "tenant key_id model input_file_id document"),
        *_columns(sa.String(16), "status"),
        *_columns(sa.Double, "created_at expires_at leased_until"),
    )
    op.create_index("ix_batches_tenant", "batches", ["tenant"])
    op.create_index("ix_batches_status", "batches", ["status"])
    op.create_table(
        "batch_lines",
        _key("batch_id"),
        _number(),
        *_columns(sa.Text, "custom_id prefix lease"),
        *_columns(sa.BigInteger, "start"),
        *_columns(sa.Integer, "length result_bytes input_tokens cached_tokens output_tokens reasoning_tokens"),
        *_columns(sa.String(16), "state"),
        *_columns(sa.Double, "leased_until"),
        sa.Column("result", sa.Text),
    )
    op.create_index("ix_batch_lines_next", "batch_lines", ["batch_id", "state", "prefix", "number"])


def _columns(kind: Any, names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, kind, nullable=False) for name in names.split()]


def _key(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.String(64), primary_key=True)


def _number() -> sa.Column[Any]:
    return sa.Column("number", sa.Integer, primary_key=True, autoincrement=False)
