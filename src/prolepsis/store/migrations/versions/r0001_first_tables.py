"""The first tables."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "request_records",
        sa.Column("record_id", sa.String(32), primary_key=True),
        sa.Column("ended_at", sa.Double, nullable=False),
        sa.Column("request_id", sa.Text, nullable=False),
        sa.Column("answer_id", sa.Text, nullable=False),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("key_id", sa.Text, nullable=False),
        sa.Column("tier", sa.Text, nullable=False),
        sa.Column("route", sa.Text, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("terminal", sa.String(16), nullable=False),
        sa.Column("error", sa.Text),
        sa.Column("mode", sa.String(16), nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("plan_version", sa.Integer, nullable=False),
        sa.Column("policy_rule", sa.Text),
        sa.Column("policy_version", sa.Text),
        sa.Column("traffic_class", sa.Text),
        sa.Column("rollout_run", sa.Text),
        sa.Column("arm", sa.Text),
        sa.Column("flags", sa.JSON, nullable=False),
        sa.Column("num_prompt_tokens", sa.Integer, nullable=False),
        sa.Column("num_cached_tokens", sa.Integer, nullable=False),
        sa.Column("num_output_tokens", sa.Integer, nullable=False),
        sa.Column("num_steps", sa.Integer, nullable=False),
        sa.Column("num_preemptions", sa.Integer, nullable=False),
        sa.Column("num_drafts", sa.Integer, nullable=False),
        sa.Column("num_draft_tokens", sa.Integer, nullable=False),
        sa.Column("num_accepted", sa.Integer, nullable=False),
        sa.Column("queue_s", sa.Double, nullable=False),
        sa.Column("compute_s", sa.Double, nullable=False),
        sa.Column("first_token_s", sa.Double),
        sa.Column("total_s", sa.Double, nullable=False),
        sa.Column("proposers", sa.JSON, nullable=False),
        sa.Column("shadow", sa.JSON, nullable=False),
        sa.Column("device_prefill_s", sa.Double),
        sa.Column("device_plain_s", sa.Double),
        sa.Column("device_verify_s", sa.Double),
        sa.Column("device_propose_s", sa.Double),
        sa.Column("device_host_s", sa.Double),
        sa.Column("predicted_plain_s", sa.Double),
        sa.Column("prices_version", sa.Text),
    )
    op.create_index("ix_request_records_ended_at", "request_records", ["ended_at"])
    op.create_index("ix_request_records_tenant", "request_records", ["tenant"])
    op.create_table(
        "audit_entries",
        sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("uid", sa.String(32), nullable=False, unique=True),
        sa.Column("at", sa.String(32), nullable=False),
        sa.Column("action", sa.Text, nullable=False),
        sa.Column("versions", sa.Text, nullable=False),
        sa.Column("erases", sa.Text, nullable=False),
        sa.Column("actor", sa.Text),
        sa.Column("tenant", sa.Text),
        sa.Column("subject", sa.Text),
        sa.Column("before", sa.Text),
        sa.Column("after", sa.Text),
        sa.Column("salt", sa.String(64)),
        sa.Column("details_digest", sa.String(64), nullable=False),
        sa.Column("previous", sa.String(64), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
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
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("author", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
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
        sa.Column("version", sa.Text, nullable=False),
        sa.Column("content", sa.Text, nullable=False),
        sa.Column("taken_at", sa.Double, nullable=False),
    )
    op.bulk_insert(audit_head, [{"id": 1, "seq": 0, "digest": "0" * 64}])
    op.bulk_insert(policy_current, [{"id": 1, "version": 0}])
