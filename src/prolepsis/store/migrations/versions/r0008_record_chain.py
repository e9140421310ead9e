"""The chain over request records."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "record_chain",
        sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("kind", sa.String(8), nullable=False),
        sa.Column("record_id", sa.String(32)),
        sa.Column("content_digest", sa.String(64), nullable=False),
        sa.Column("deletes", sa.Text, nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
    )
    op.create_index("ix_record_chain_record_id", "record_chain", ["record_id"])
    record_head = op.create_table(
        "record_head",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("seq", sa.BigInteger, nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("signed_at", sa.String(32)),
        sa.Column("key_id", sa.String(16)),
        sa.Column("signature", sa.String(88)),
    )
    op.bulk_insert(record_head, [{"id": 1, "seq": 0, "digest": "0" * 64}])
