"""The tables, as the newest migration leaves them; a test compares the two.

Times are seconds of Unix time, but for audit entries, whose time is hashed and therefore a text.
"""

from sqlalchemy import JSON, BigInteger, Column, Double, Index, Integer, MetaData, String, Table, Text

metadata = MetaData()

request_records = Table(
    "request_records",
    metadata,
    Column("record_id", String(32), primary_key=True),
    Column("ended_at", Double, nullable=False),
    Column("request_id", Text, nullable=False),
    Column("answer_id", Text, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("key_id", Text, nullable=False),
    Column("tier", Text, nullable=False),
    Column("route", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("terminal", String(16), nullable=False),
    Column("error", Text),
    Column("mode", String(16), nullable=False),
    Column("reason", Text, nullable=False),
    Column("plan_version", Integer, nullable=False),
    Column("policy_rule", Text),
    Column("policy_version", Text),
    Column("traffic_class", Text),
    Column("rollout_run", Text),
    Column("arm", Text),
    Column("flags", JSON, nullable=False),
    Column("num_prompt_tokens", Integer, nullable=False),
    Column("num_cached_tokens", Integer, nullable=False),
    Column("num_output_tokens", Integer, nullable=False),
    Column("num_steps", Integer, nullable=False),
    Column("num_preemptions", Integer, nullable=False),
    Column("num_drafts", Integer, nullable=False),
    Column("num_draft_tokens", Integer, nullable=False),
    Column("num_accepted", Integer, nullable=False),
    Column("queue_s", Double, nullable=False),
    Column("compute_s", Double, nullable=False),
    Column("first_token_s", Double),
    Column("total_s", Double, nullable=False),
    Column("proposers", JSON, nullable=False),
    Column("shadow", JSON, nullable=False),
    Column("device_prefill_s", Double),
    Column("device_plain_s", Double),
    Column("device_verify_s", Double),
    Column("device_propose_s", Double),
    Column("device_host_s", Double),
    Column("predicted_plain_s", Double),
    Column("prices_version", Text),
    Index("ix_request_records_ended_at", "ended_at"),
    Index("ix_request_records_tenant", "tenant"),
)

audit_entries = Table(
    "audit_entries",
    metadata,
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("uid", String(32), nullable=False, unique=True),
    Column("at", String(32), nullable=False),
    Column("action", Text, nullable=False),
    Column("versions", Text, nullable=False),
    Column("erases", Text, nullable=False),
    Column("actor", Text),
    Column("tenant", Text),
    Column("subject", Text),
    Column("before", Text),
    Column("after", Text),
    Column("salt", String(64)),
    Column("details_digest", String(64), nullable=False),
    Column("previous", String(64), nullable=False),
    Column("digest", String(64), nullable=False),
    Index("ix_audit_entries_tenant", "tenant"),
)

audit_head = Table(
    "audit_head",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("seq", BigInteger, nullable=False),
    Column("digest", String(64), nullable=False),
)
"""One row: the end of the chain; a writer locks it while it appends."""

policy_versions = Table(
    "policy_versions",
    metadata,
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("digest", String(64), nullable=False),
    Column("text", Text, nullable=False),
    Column("author", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("created_at", Double, nullable=False),
)

policy_current = Table(
    "policy_current",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("version", Integer, nullable=False),
)
"""One row: the version in use, 0 before the first."""

price_books = Table(
    "price_books",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("version", Text, nullable=False),
    Column("content", Text, nullable=False),
    Column("taken_at", Double, nullable=False),
)

rollout_states = Table(
    "rollout_states",
    metadata,
    Column("rollout_id", String(128), primary_key=True),
    Column("version", Integer, nullable=False),
    Column("state", Text, nullable=False),
    Column("changed_at", Double, nullable=False),
)

rollout_events = Table(
    "rollout_events",
    metadata,
    Column("rollout_id", String(128), primary_key=True),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("event", Text, nullable=False),
    Column("stored_at", Double, nullable=False),
)

rollout_evidence = Table(
    "rollout_evidence",
    metadata,
    Column("rollout_id", String(128), primary_key=True),
    Column("replica", String(32), primary_key=True),
    Column("evidence", Text, nullable=False),
    Column("kept_at", Double, nullable=False),
)
"""Evidence of each replica for a rollout's stage, until the stage is over."""
