"""What is kept of one request that has ended: figures and names, no text of prompt or answer."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Self, get_args
from uuid import uuid4

from sqlalchemy import ColumnElement, Connection, delete, func, insert, select

from prolepsis.core.ended import End, PromptEnded, RequestAbout
from prolepsis.core.stats import DeviceKind, Mode, ProposerCounts
from prolepsis.store.database import Database
from prolepsis.store.queue import Kind, QueueItem
from prolepsis.store.tables import request_records


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord(QueueItem):
    """One row of `request_records`; times in seconds, `ended_at` of Unix time."""

    kind: ClassVar[Kind] = "request"

    record_id: str
    ended_at: float
    request_id: str
    answer_id: str
    tenant: str
    key_id: str
    tier: str
    route: str
    model: str
    terminal: End
    error: str | None
    """Code of the error where it failed."""
    mode: Mode
    reason: str
    plan_version: int
    policy_rule: str | None
    policy_version: str | None
    traffic_class: str | None
    rollout_run: str | None
    arm: str | None
    flags: Mapping[str, object]
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    num_steps: int
    num_preemptions: int
    num_drafts: int
    num_draft_tokens: int
    num_accepted: int
    queue_s: float
    compute_s: float
    first_token_s: float | None
    total_s: float
    proposers: Mapping[str, Mapping[str, object]]
    """Counts of verified drafts by proposer, the fields of `ProposerCounts`; likewise those compared in shadow."""
    shadow: Mapping[str, Mapping[str, object]]
    device_prefill_s: float | None
    """Device seconds by purpose, the fields of `DeviceSeconds`; None: the engine did not report them."""
    device_plain_s: float | None
    device_verify_s: float | None
    device_propose_s: float | None
    device_host_s: float | None
    predicted_plain_s: float | None
    prices_version: str | None

    @classmethod
    def write(cls, connection: Connection, items: Sequence[Self]) -> None:
        add(connection, items)


def request_record(about: RequestAbout, prompt: PromptEnded, *, prices_version: str | None = None) -> RequestRecord:
    """Return the record of a prompt of a request that ends now; `prices_version` names the price in use."""
    stats, assignment = prompt.stats, about.assignment
    device = stats.device if prompt.answer != "unreported" else None
    values: dict[str, Any] = {
        **_named(about, "answer_id tenant key_id tier route model policy_rule policy_version flags"),
        **_named(stats.mode, "mode reason plan_version"),
        **_named(stats, "num_prompt_tokens num_cached_tokens num_output_tokens num_steps num_preemptions"),
        **_named(stats, "num_drafts num_draft_tokens num_accepted queue_s compute_s first_token_s total_s"),
        **{f"device_{kind}_s": getattr(device, kind, None) for kind in get_args(DeviceKind)},
    }
    return RequestRecord(
        record_id=uuid4().hex,
        ended_at=time.time(),
        request_id=prompt.request.request_id,
        traffic_class=prompt.request.traffic_class or None,
        rollout_run=assignment.rollout_run if assignment else None,
        arm=assignment.arm if assignment else None,
        terminal="failed" if prompt.end == "refused" else prompt.end,
        error=prompt.error,
        proposers=_plain(stats.proposers),
        shadow=_plain(stats.shadow),
        predicted_plain_s=device.predicted_plain if device else None,
        prices_version=prices_version,
        **values,
    )


def _named(source: object, names: str) -> dict[str, Any]:
    """Return the attributes that have the name of their column."""
    return {name: getattr(source, name) for name in names.split()}


def _plain(counts: Mapping[str, ProposerCounts]) -> dict[str, dict[str, object]]:
    return {name: asdict(count) for name, count in counts.items()}


DELETE_BATCH = 1000
_COLUMNS = tuple(field.name for field in fields(RequestRecord))


def add(connection: Connection, records: Sequence[RequestRecord]) -> None:
    """Write records; those that exist already stay as they are, so a batch with an unknown outcome can be repeated."""
    ids = [record.record_id for record in records]
    known = set(connection.scalars(select(request_records.c.record_id).where(request_records.c.record_id.in_(ids))))
    rows = [{name: getattr(r, name) for name in _COLUMNS} for r in records if r.record_id not in known]
    if rows:
        connection.execute(insert(request_records), rows)


def count(connection: Connection) -> int:
    return connection.scalar(select(func.count()).select_from(request_records)) or 0


def prune(database: Database, before: float) -> int:
    """Delete the records that ended before a Unix time; returns their number. Raises `StoreUnavailable`."""
    return _delete(database, request_records.c.ended_at < before)


def forget(database: Database, tenant: str) -> int:
    """Delete a tenant's records; returns their number. Raises `StoreUnavailable`."""
    return _delete(database, request_records.c.tenant == tenant)


def _delete(database: Database, which: ColumnElement[bool]) -> int:
    """Delete in short transactions, so that writers need not wait."""
    some = select(request_records.c.record_id).where(which).limit(DELETE_BATCH)
    total = 0
    while True:
        with database.write() as connection:
            deleted = connection.execute(delete(request_records).where(request_records.c.record_id.in_(some))).rowcount
        total += deleted
        if deleted < DELETE_BATCH:
            return total
