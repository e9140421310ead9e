"""The names by which people know a request, and its seed."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("request_records", sa.Column("http_request_id", sa.Text))
    op.add_column("request_records", sa.Column("trace_id", sa.String(32)))
    op.add_column("request_records", sa.Column("seed", sa.BigInteger))
    for name in ("request_id", "answer_id", "http_request_id", "trace_id"):
        op.create_index(f"ix_request_records_{name}", "request_records", [name])
    op.create_table(
        "audit_names",
        sa.Column("name_digest", sa.String(64), primary_key=True),
        sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
    )
    op.create_index("ix_audit_names_seq", "audit_names", ["seq"])
