"""The tables, as the newest migration leaves them; a test compares the two.

Times are seconds of Unix time, except for audit entries, whose time is hashed and therefore a text.
"""

from collections.abc import Mapping
from typing import Any

import sqlalchemy
from sqlalchemy import JSON, BigInteger, Boolean, Column, Double, Index, Integer, MetaData, Table, TypeDecorator
from sqlalchemy.engine import Dialect

from prolepsis.core.request_figures import FIGURES
from prolepsis.core.stored_text import storable

metadata = MetaData()


class StoredString(TypeDecorator[str]):
    """A text that every database takes, to be kept or to be looked for: of characters that none holds it has U+FFFD."""

    impl = sqlalchemy.String
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else storable(value)


class StoredText(StoredString):
    """One of any length."""

    impl = sqlalchemy.Text
    cache_ok = True


def _columns(kind: Any, names: str, *, nullable: bool = False) -> list[Column[Any]]:
    """Return columns of one type."""
    return [Column(name, kind, nullable=nullable) for name in names.split()]


NAMES = ("request_id", "answer_id", "http_request_id", "trace_id")
"""Columns of the names by which people know a request."""

_KINDS: Mapping[str, Any] = {
    **{
        "text": StoredText,
        "word": StoredString(16),
        "id": StoredString(32),
        "json": JSON,
        "count": Integer,
        "seed": BigInteger,
    },
    **{"seconds": Double, "share": Double, "flag": Boolean},
}

request_records = Table(
    "request_records",
    metadata,
    Column("record_id", StoredString(32), primary_key=True),
    Column("ended_at", Double, nullable=False),
    Column("prices_version", StoredText),
    *(Column(each.name, _KINDS[each.kind.rstrip("?")], nullable=each.kind.endswith("?")) for each in FIGURES),
    Index("ix_request_records_ended_at", "ended_at"),
    Index("ix_request_records_tenant", "tenant"),
    *(Index(f"ix_request_records_{name}", name) for name in NAMES),
)
"""One row a prompt; `prices_version` names the price in use."""

request_retries = Table(
    "request_retries",
    metadata,
    Column("retry_id", StoredString(32), primary_key=True),
    *_columns(StoredText, "answer_id http_request_id tenant"),
    Column("trace_id", StoredString(32)),
    Column("retried_at", Double, nullable=False),
    *(Index(f"ix_request_retries_{name}", name) for name in ("http_request_id", "tenant", "trace_id", "retried_at")),
)
"""Names of retries (`Idempotency-Key`), and the answer that each got; they are kept as long as request records."""

record_chain = Table(
    "record_chain",
    metadata,
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("kind", StoredString(8), nullable=False),
    Column("record_id", StoredString(32)),
    Column("content_digest", StoredString(64), nullable=False),
    Column("deletes", StoredText, nullable=False),
    Column("digest", StoredString(64), nullable=False),
    Index("ix_record_chain_record_id", "record_id"),
)
"""A link for each request record, and one for each deletion; it stays when the record is deleted."""

record_head = Table(
    "record_head",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("seq", BigInteger, nullable=False),
    Column("digest", StoredString(64), nullable=False),
    Column("signed_at", StoredString(32)),
    Column("key_id", StoredString(16)),
    Column("signature", StoredString(88)),
)
"""One row: the end of that chain, as `audit_head`."""

audit_entries = Table(
    "audit_entries",
    metadata,
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("uid", StoredString(32), nullable=False, unique=True),
    Column("at", StoredString(32), nullable=False),
    *_columns(StoredText, "action versions erases"),
    *_columns(StoredText, "actor tenant subject before after", nullable=True),
    Column("salt", StoredString(64)),
    *_columns(StoredString(64), "details_digest previous digest"),
    Index("ix_audit_entries_tenant", "tenant"),
)

audit_names = Table(
    "audit_names",
    metadata,
    Column("name_digest", StoredString(64), primary_key=True),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Index("ix_audit_names_seq", "seq"),
)
"""An index of the chain, no part of it: SHA-256 of the names by which an entry is found."""

audit_head = Table(
    "audit_head",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("seq", BigInteger, nullable=False),
    Column("digest", StoredString(64), nullable=False),
    Column("signed_at", StoredString(32)),
    Column("key_id", StoredString(16)),
    Column("signature", StoredString(88)),
)
"""One row: the end of the chain; a writer locks it while it appends. It is not signed if its writer has no key."""

audit_waiting = Table(
    "audit_waiting",
    metadata,
    Column("uid", StoredString(32), primary_key=True),
    Column("event", StoredText, nullable=False),
    Column("left_at", Double, nullable=False),
)
"""Acts of commands without the audit key, until a server appends them to the chain; the fields of `AuditEvent`."""

policy_versions = Table(
    "policy_versions",
    metadata,
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("digest", StoredString(64), nullable=False),
    *_columns(StoredText, "text author reason"),
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
    *_columns(StoredText, "version content"),
    Column("taken_at", Double, nullable=False),
)

cost_periods = Table(
    "cost_periods",
    metadata,
    Column("replica", StoredString(32), primary_key=True),
    Column("started_at", Double, primary_key=True, autoincrement=False),
    Column("ended_at", Double, nullable=False),
    Column("price", StoredText),
    Column("currency", StoredString(3)),
    *_columns(Double, "held_s used_s"),
    Column("num_output_tokens", BigInteger, nullable=False),
    *_columns(Double, "amount_paid amount_used", nullable=True),
)
"""What the device of each server cost, period by period; the fields of `DeviceCost`."""

rollout_states = Table(
    "rollout_states",
    metadata,
    Column("rollout_id", StoredString(128), primary_key=True),
    Column("version", Integer, nullable=False),
    Column("state", StoredText, nullable=False),
    Column("changed_at", Double, nullable=False),
)

rollout_events = Table(
    "rollout_events",
    metadata,
    Column("rollout_id", StoredString(128), primary_key=True),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("event", StoredText, nullable=False),
    Column("stored_at", Double, nullable=False),
)

rollout_evidence = Table(
    "rollout_evidence",
    metadata,
    Column("rollout_id", StoredString(128), primary_key=True),
    Column("replica", StoredString(32), primary_key=True),
    Column("evidence", StoredText, nullable=False),
    Column("kept_at", Double, nullable=False),
)
"""Evidence of each replica for a rollout's stage, until the stage is over."""

rollout_units = Table(
    "rollout_units",
    metadata,
    Column("rollout_id", StoredString(128), primary_key=True),
    Column("run", Integer, primary_key=True, autoincrement=False),
    Column("stage", Integer, primary_key=True, autoincrement=False),
    Column("unit", StoredString(16), primary_key=True),
    Column("late", Boolean, primary_key=True),
    Column("counted_at", Double, nullable=False),
)
"""Hashes of the keys that some replica has counted for a stage, until the stage is over."""

learned = Table(
    "learned",
    metadata,
    Column("kind", StoredString(16), primary_key=True),
    Column("proposer", StoredString(64), primary_key=True),
    Column("traffic_class", StoredString(256), primary_key=True),
    Column("version", StoredString(256), primary_key=True),
    Column("state", StoredText, nullable=False),
    Column("kept_at", Double, nullable=False),
)
"""What the server learned of a proposer in a traffic class, by version of head and target.

Kinds: `stream` (baselines), `figures` (recent drafts), `benefit` (of all versions, so `version` is empty), `condition`
(whether a traffic class is eligible, by the condition's digest in `version`, without a proposer)."""

controls = Table(
    "controls",
    metadata,
    Column("kind", StoredString(32), primary_key=True),
    Column("name", StoredString(400), primary_key=True),
    Column("value", StoredText, nullable=False),
    Column("changed_at", Double, nullable=False),
    *_columns(StoredText, "author reason"),
)
"""What operators set for all replicas (scopes of the kill switch, breakers, flags), and breakers that opened.

`changed_at`: the time of the act. An empty value: it was removed."""

replicas = Table(
    "replicas",
    metadata,
    Column("replica", StoredString(128), primary_key=True),
    Column("facts", StoredText, nullable=False),
    *_columns(Double, "started_at seen_at"),
)
"""The servers that use this database, as each describes itself in JSON, and when each was last seen."""

turns = Table(
    "turns",
    metadata,
    Column("work", StoredString(128), primary_key=True),
    Column("taken_at", Double, nullable=False),
)
"""Work that one of the replicas does, and when one last took it."""

allowances = Table(
    "allowances",
    metadata,
    Column("kind", StoredString(16), primary_key=True),
    Column("owner", StoredString(300), primary_key=True),
    *_columns(Double, "per_minute level filled_at"),
)
"""What is left of rate limits, beyond what replicas have leased of it; an owner without a row has all of it."""

files = Table(
    "files",
    metadata,
    Column("file_id", StoredString(64), primary_key=True),
    *_columns(StoredText, "tenant purpose filename"),
    Column("num_bytes", BigInteger),
    *_columns(Double, "created_at expires_at"),
    Column("batch_id", StoredString(64)),
    Column("line_state", StoredString(16)),
    Index("ix_files_tenant", "tenant"),
)
"""Files of tenants. With a `batch_id` the content is the results of that batch's lines that are in `line_state`."""

file_parts = Table(
    "file_parts",
    metadata,
    Column("file_id", StoredString(64), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("content", sqlalchemy.LargeBinary, nullable=False),
)
"""Parts of one size, but for the last of a file."""

batches = Table(
    "batches",
    metadata,
    Column("batch_id", StoredString(64), primary_key=True),
    *_columns(StoredText, "tenant key_id model input_file_id document"),
    Column("status", StoredString(16), nullable=False),
    *_columns(Double, "created_at expires_at leased_until"),
    Index("ix_batches_tenant", "tenant"),
    Index("ix_batches_status", "status"),
)
"""`document`: what clients see of it besides, as JSON. `leased_until`: a server reads its file until then."""

batch_lines = Table(
    "batch_lines",
    metadata,
    Column("batch_id", StoredString(64), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    *_columns(StoredText, "custom_id prefix lease"),
    Column("start", BigInteger, nullable=False),
    *_columns(Integer, "length result_bytes input_tokens cached_tokens output_tokens reasoning_tokens"),
    Column("state", StoredString(16), nullable=False),
    Column("leased_until", Double, nullable=False),
    Column("result", StoredText),
    Index("ix_batch_lines_next", "batch_id", "state", "prefix", "number"),
)
"""Lines of a batch's file, where they are in it, and their results. `state`: open, completed or failed.

`prefix` sorts lines that begin alike next to each other. `lease`: of the server that runs it until `leased_until`.
"""

responses = Table(
    "responses",
    metadata,
    Column("response_id", StoredString(64), primary_key=True),
    *_columns(StoredText, "tenant"),
    Column("previous_id", StoredString(64)),
    *_columns(StoredString(16), "status"),
    *_columns(BigInteger, "num_bytes"),
    *_columns(Double, "created_at expires_at leased_until"),
    *_columns(StoredText, "input document"),
    Index("ix_responses_tenant", "tenant", "created_at"),
    Index("ix_responses_status", "status"),
)
"""Responses that tenants keep. `input`: the items given with it; `document`: the response as clients see it; both JSON.

`num_bytes`: of all its texts, events included. `leased_until`: a server runs it until then, if `status` says so."""

response_events = Table(
    "response_events",
    metadata,
    Column("response_id", StoredString(64), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    *_columns(StoredText, "event"),
)
"""Events of a response in the background, as JSON, by their sequence numbers."""
