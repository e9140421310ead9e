"""The first tables."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def _columns(kind: Any, names: str, *, nullable: bool = False) -> list[sa.Column[Any]]:
    return [sa.Column(name, kind, nullable=nullable) for name in names.split()]


def upgrade() -> None:
    op.create_table(
        "request_records",
        sa.Column("record_id", sa.String(32), primary_key=True),
        *_columns(sa.Text, "request_id answer_id tenant key_id tier route model reason"),
        *_columns(sa.Text, "error policy_rule policy_version traffic_class rollout_run arm", nullable=True),
        *_columns(sa.Text, "prices_version", nullable=True),
        *_columns(sa.String(16), "terminal mode"),
        *_columns(sa.JSON, "flags proposers shadow"),
        *_columns(sa.Integer, "plan_version num_prompt_tokens num_cached_tokens num_output_tokens num_steps"),
        *_columns(sa.Integer, "num_preemptions num_drafts num_draft_tokens num_accepted"),
        *_columns(sa.Double, "ended_at queue_s compute_s total_s"),
        *_columns(sa.Double, "first_token_s device_prefill_s device_plain_s device_verify_s", nullable=True),
        *_columns(sa.Double, "device_propose_s device_host_s predicted_plain_s", nullable=True),
    )
    op.create_index("ix_request_records_ended_at", "request_records", ["ended_at"])
    op.create_index("ix_request_records_tenant", "request_records", ["tenant"])
    op.create_table(
        "audit_entries",
        sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("uid", sa.String(32), nullable=False, unique=True),
        sa.Column("at", sa.String(32), nullable=False),
        *_columns(sa.Text, "action versions erases"),
        *_columns(sa.Text, "actor tenant subject before after", nullable=True),
        sa.Column("salt", sa.String(64)),
        *_columns(sa.String(64), "details_digest previous digest"),
    )
    op.create_index("ix_audit_entries_tenant", "audit_entries", ["tenant"])
    audit_head = op.create_table(
        "audit_head",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("seq", sa.BigInteger, nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
    )
    op.create_table(
        "policy_versions",
        sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("digest", sa.String(64), nullable=False),
        *_columns(sa.Text, "text author reason"),
        sa.Column("created_at", sa.Double, nullable=False),
    )
    policy_current = op.create_table(
        "policy_current",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("version", sa.Integer, nullable=False),
    )
    op.create_table(
        "rollout_states",
        sa.Column("rollout_id", sa.String(128), primary_key=True),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("changed_at", sa.Double, nullable=False),
    )
    op.create_table(
        "rollout_events",
        sa.Column("rollout_id", sa.String(128), primary_key=True),
        sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("event", sa.Text, nullable=False),
        sa.Column("stored_at", sa.Double, nullable=False),
    )
    op.create_table(
        "rollout_evidence",
        sa.Column("rollout_id", sa.String(128), primary_key=True),
        sa.Column("replica", sa.String(32), primary_key=True),
        sa.Column("evidence", sa.Text, nullable=False),
        sa.Column("kept_at", sa.Double, nullable=False),
    )
    op.create_table(
        "price_books",
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        *_columns(sa.Text, "version content"),
        sa.Column("taken_at", sa.Double, nullable=False),
    )
    op.bulk_insert(audit_head, [{"id": 1, "seq": 0, "digest": "0" * 64}])
    op.bulk_insert(policy_current, [{"id": 1, "version": 0}])
