"""The tables. Nothing has been released, so the first migration makes them as they stand here.

Times are seconds of Unix time, except for audit entries, whose time is hashed and therefore a text.
"""

from collections.abc import Mapping
from typing import Any

import sqlalchemy
from sqlalchemy import JSON, BigInteger, Boolean, Column, Double, Index, Integer, MetaData, Table, TypeDecorator
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeEngine

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


_LONGEST_KEY = 640


class DocumentKey(StoredString):
    """One that sorts by code points everywhere, so that a range finds all that begin alike."""

    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return sqlalchemy.String(_LONGEST_KEY, collation="C" if dialect.name == "postgresql" else None)


def _columns(kind: Any, names: str, *, nullable: bool = False) -> list[Column[Any]]:
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

documents = Table(
    "documents",
    metadata,
    Column("kind", StoredString(16), primary_key=True),
    Column("key", DocumentKey(_LONGEST_KEY), primary_key=True),
    Column("version", Integer, nullable=False),
    Column("value", StoredText, nullable=False),
    Column("at", Double, nullable=False),
    Column("by", StoredText, nullable=False),
)
"""What no query looks into, by kind (`Documents`). No index beside the key: changed rows stay where they are."""

chain_links = Table(
    "chain_links",
    metadata,
    Column("chain", StoredString(8), primary_key=True),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("action", StoredText, nullable=False),
    Column("details_digest", StoredString(64), nullable=False),
    Column("digest", StoredString(64), nullable=False),
    *_columns(StoredString(32), "uid at record_id", nullable=True),
    *_columns(StoredText, "versions erases actor tenant subject before after", nullable=True),
    *_columns(StoredString(64), "previous salt", nullable=True),
)
"""A link for each act (chain `audit`), and for each request record, or deletion of some (chain `requests`).

`record_id` is null after the record's deletion; `actor` to `after` and `salt` after an erasure. `erases`: numbers."""
for _columns_of in (("uid",), ("record_id",), ("tenant", "seq")):
    _indexed = [chain_links.c[name] for name in ("chain", *_columns_of)]
    _is_given = _indexed[1].is_not(None)  # the links of the other chain have none
    _where: dict[str, Any] = {"sqlite_where": _is_given, "postgresql_where": _is_given}
    Index(f"ix_chain_links_{_columns_of[0]}", *_indexed, unique=_columns_of == ("uid",), **_where)

chain_names = Table(
    "chain_names",
    metadata,
    Column("name_digest", StoredString(64), primary_key=True),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Index("ix_chain_names_seq", "seq"),
)
"""An index of the acts, no part of their chain: SHA-256 of the names by which an entry is found."""

chain_heads = Table(
    "chain_heads",
    metadata,
    Column("chain", StoredString(8), primary_key=True),
    Column("seq", BigInteger, nullable=False),
    Column("digest", StoredString(64), nullable=False),
    Column("signed_at", StoredString(32)),
    Column("key_id", StoredString(16)),
    Column("signature", StoredString(88)),
)
"""The end of each chain; a writer locks it while it appends. It is not signed if its writer has no key."""

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
    *_columns(StoredText, "result written", nullable=True),
    Index("ix_batch_lines_next", "batch_id", "state", "prefix", "number"),
)
"""Lines of a batch's file, where they are in it, and their results. `state`: open, completed or failed.

`written`: who wrote the result and whether the target agrees, as JSON, where a writer was asked.
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
