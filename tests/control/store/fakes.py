"""Records to write, and what was written."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, select

from prolepsis.control.audit import chain
from prolepsis.control.audit.entry import AuditEntry
from prolepsis.control.store.records import RequestRecord, request_record
from prolepsis.control.store.store import Store
from prolepsis.control.store.tables import request_records
from prolepsis.core.audit_event import AuditEvent
from prolepsis.core.ended import PromptEnded, RequestAbout
from prolepsis.core.requests import GenerateRequest, SamplingParams
from prolepsis.core.stats import DeviceSeconds, EffectiveMode, ProposerCounts, RequestStats

STATS = RequestStats(
    num_prompt_tokens=7,
    num_cached_tokens=2,
    num_output_tokens=9,
    num_steps=4,
    proposers={"suffix": ProposerCounts(3, 6, 5, [[3, 3], [3, 2]])},
    shadow={"draft_head": ProposerCounts(1, 2, 1, [[1, 1], [1, 0]])},
    queue_s=0.1,
    compute_s=0.3,
    first_token_s=0.2,
    total_s=0.5,
    device=DeviceSeconds(0.1, 0.2, 0.05, 0.02, 0.01, 0.4),
    mode=EffectiveMode("on", "speculating", 3),
)


class DatabaseClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self, _: Connection) -> float:
        return self.now


def record(tenant: str = "acme", request_id: str = "cmpl-1", model: str = "tiny", **changes: object) -> RequestRecord:
    """Return a record, with `changes` in its row."""
    about = RequestAbout(
        answer_id=request_id,
        tenant=tenant,
        key_id="0123456789ab",
        tier="standard",
        route="/v1/completions",
        model=model,
        policy_rule="code",
        policy_version="1@abc",
        flags={"speculation": {"variant": "on", "reason": "SPLIT"}},
    )
    prompt = PromptEnded(
        request=GenerateRequest(request_id, (1, 2), SamplingParams()),
        end="finished",
        error=None,
        stats=STATS,
        num_shown_tokens=STATS.num_output_tokens,
        answer="complete",
        tokens=(),
        finish_reasons=("stop",),
        delivery={},
    )
    return RequestRecord({**request_record(about, prompt, prices_version="2026@abc").row, **changes})


def latest_records(connection: Connection, limit: int, tenant: str | None = None) -> Sequence[Row[Any]]:
    query = select(request_records).order_by(request_records.c.ended_at.desc()).limit(limit)
    if tenant is not None:
        query = query.where(request_records.c.tenant == tenant)
    return connection.execute(query).all()


def append(store: Store, event: AuditEvent) -> AuditEntry:
    with store.database.write() as connection:
        [entry] = chain.append(connection, [event])
    return entry
