"""Signatures of the audit chain's head."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("audit_head", sa.Column("signed_at", sa.String(32)))
    op.add_column("audit_head", sa.Column("key_id", sa.String(16)))
    op.add_column("audit_head", sa.Column("signature", sa.String(88)))
