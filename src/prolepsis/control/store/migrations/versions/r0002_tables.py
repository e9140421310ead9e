"""All tables. 0001 was the schema of builds before the first release, and is refused."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = None
branch_labels = None
depends_on = None

NO_ENTRY = {"id": 1, "seq": 0, "digest": "0" * 64}
"""The end of a chain that has no entry."""


def upgrade() -> None:
    _requests()
    _audit_log()
    _policies_and_prices()
    _rollouts()
    _learned()
    _shared_by_replicas()


def _columns(kind: Any, names: str, *, nullable: bool = False) -> list[sa.Column[Any]]:
    return [sa.Column(name, kind, nullable=nullable) for name in names.split()]


def _key(name: str, kind: Any) -> sa.Column[Any]:
    return sa.Column(name, kind, primary_key=True, autoincrement=False)


def _indexes(table: str, *columns: str) -> None:
    for column in columns:
        op.create_index(f"ix_{table}_{column}", table, [column])


def _head(table: str) -> None:
    """Create the table of a chain's end."""
    head = op.create_table(
        table,
        _key("id", sa.Integer),
        sa.Column("seq", sa.BigInteger, nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("signed_at", sa.String(32)),
        sa.Column("key_id", sa.String(16)),
        sa.Column("signature", sa.String(88)),
    )
    op.bulk_insert(head, [NO_ENTRY])


def _requests() -> None:
    op.create_table(
        "request_records",
        _key("record_id", sa.String(32)),
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
        sa.Column("http_request_id", sa.Text),
        sa.Column("trace_id", sa.String(32)),
        sa.Column("seed", sa.BigInteger),
    )
    _indexes("request_records", "ended_at", "tenant", "request_id", "answer_id", "http_request_id", "trace_id")
    op.create_table(
        "request_retries",
        _key("retry_id", sa.String(32)),
        *_columns(sa.Text, "answer_id http_request_id tenant"),
        sa.Column("trace_id", sa.String(32)),
        sa.Column("retried_at", sa.Double, nullable=False),
    )
    _indexes("request_retries", "http_request_id", "tenant", "trace_id", "retried_at")
    op.create_table(
        "record_chain",
        _key("seq", sa.BigInteger),
        sa.Column("kind", sa.String(8), nullable=False),
        sa.Column("record_id", sa.String(32)),
        sa.Column("content_digest", sa.String(64), nullable=False),
        sa.Column("deletes", sa.Text, nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
    )
    _indexes("record_chain", "record_id")
    _head("record_head")


def _audit_log() -> None:
    op.create_table(
        "audit_entries",
        _key("seq", sa.BigInteger),
        sa.Column("uid", sa.String(32), nullable=False, unique=True),
        sa.Column("at", sa.String(32), nullable=False),
        *_columns(sa.Text, "action versions erases"),
        *_columns(sa.Text, "actor tenant subject before after", nullable=True),
        sa.Column("salt", sa.String(64)),
        *_columns(sa.String(64), "details_digest previous digest"),
    )
    _indexes("audit_entries", "tenant")
    op.create_table("audit_names", _key("name_digest", sa.String(64)), _key("seq", sa.BigInteger))
    _indexes("audit_names", "seq")
    _head("audit_head")
    op.create_table(
        "audit_waiting",
        _key("uid", sa.String(32)),
        sa.Column("event", sa.Text, nullable=False),
        sa.Column("left_at", sa.Double, nullable=False),
    )


def _policies_and_prices() -> None:
    op.create_table(
        "policy_versions",
        _key("version", sa.Integer),
        sa.Column("digest", sa.String(64), nullable=False),
        *_columns(sa.Text, "text author reason"),
        sa.Column("created_at", sa.Double, nullable=False),
    )
    current = op.create_table(
        "policy_current", _key("id", sa.Integer), sa.Column("version", sa.Integer, nullable=False)
    )
    op.bulk_insert(current, [{"id": 1, "version": 0}])
    op.create_table(
        "price_books",
        _key("number", sa.Integer),
        *_columns(sa.Text, "version content"),
        sa.Column("taken_at", sa.Double, nullable=False),
    )
    op.create_table(
        "cost_periods",
        _key("replica", sa.String(32)),
        _key("started_at", sa.Double),
        sa.Column("ended_at", sa.Double, nullable=False),
        sa.Column("price", sa.Text),
        sa.Column("currency", sa.String(3)),
        *_columns(sa.Double, "held_s used_s"),
        sa.Column("num_output_tokens", sa.BigInteger, nullable=False),
        *_columns(sa.Double, "amount_paid amount_used", nullable=True),
    )


def _rollouts() -> None:
    op.create_table(
        "rollout_states",
        _key("rollout_id", sa.String(128)),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("changed_at", sa.Double, nullable=False),
    )
    op.create_table(
        "rollout_events",
        _key("rollout_id", sa.String(128)),
        _key("version", sa.Integer),
        _key("number", sa.Integer),
        sa.Column("event", sa.Text, nullable=False),
        sa.Column("stored_at", sa.Double, nullable=False),
    )
    op.create_table(
        "rollout_evidence",
        _key("rollout_id", sa.String(128)),
        _key("replica", sa.String(32)),
        sa.Column("evidence", sa.Text, nullable=False),
        sa.Column("kept_at", sa.Double, nullable=False),
    )
    op.create_table(
        "rollout_units",
        _key("rollout_id", sa.String(128)),
        _key("run", sa.Integer),
        _key("stage", sa.Integer),
        _key("unit", sa.String(16)),
        _key("late", sa.Boolean),
        sa.Column("counted_at", sa.Double, nullable=False),
    )


def _learned() -> None:
    op.create_table(
        "learned",
        _key("kind", sa.String(16)),
        _key("proposer", sa.String(64)),
        _key("traffic_class", sa.String(256)),
        _key("version", sa.String(256)),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("kept_at", sa.Double, nullable=False),
    )


def _shared_by_replicas() -> None:
    op.create_table(
        "controls",
        _key("kind", sa.String(32)),
        _key("name", sa.String(400)),
        sa.Column("value", sa.Text, nullable=False),
        sa.Column("changed_at", sa.Double, nullable=False),
        *_columns(sa.Text, "author reason"),
    )
    op.create_table(
        "replicas",
        _key("replica", sa.String(128)),
        sa.Column("facts", sa.Text, nullable=False),
        *_columns(sa.Double, "started_at seen_at"),
    )
    op.create_table("turns", _key("work", sa.String(128)), sa.Column("taken_at", sa.Double, nullable=False))
    op.create_table(
        "allowances",
        _key("kind", sa.String(16)),
        _key("owner", sa.String(300)),
        *_columns(sa.Double, "per_minute level filled_at"),
    )
