from dataclasses import replace

import pytest
from opentelemetry.sdk.trace.sampling import Decision, TraceIdRatioBased

from prolepsis.core.ended import End
from prolepsis.core.reasons import EffectiveReason, PlainReason
from prolepsis.core.requests import SpeculationChoice
from prolepsis.core.trace_context import new_trace_id
from prolepsis.ops.tracing.keep import Kept, SpanBudget, fallback_reasons, is_in_share, why_kept
from tests.ops.tracing.ended import NOT_SAMPLED, prompt_ended, request_ended

SAMPLED = Decision.RECORD_AND_SAMPLE


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 1.0])
def test_the_share_is_that_of_opentelemetry(share: float) -> None:
    theirs = TraceIdRatioBased(share)
    ids = [f"{i:016x}{(i * 2**61) % 2**64:016x}" for i in range(1, 9)] + [new_trace_id() for _ in range(50)]
    for trace_id in ids:
        decided = theirs.should_sample(None, int(trace_id, 16), "").decision is SAMPLED
        assert is_in_share(trace_id, share) == decided, trace_id


@pytest.mark.parametrize(
    ("end", "kept"),
    [
        ("finished", None),
        ("left", None),
        ("refused", None),
        ("broken", None),
        ("failed", "error"),
        ("aborted", "error"),
    ],
)
def test_errors_are_kept(end: End, kept: Kept | None) -> None:
    assert why_kept(request_ended(prompt_ended(end=end), end=end, trace=NOT_SAMPLED)) == kept


def test_sampled_traces_are_kept_as_sampled() -> None:
    assert why_kept(request_ended(prompt_ended(end="failed"), end="failed")) == "sampled"


def test_without_a_trace_errors_have_a_reason_too() -> None:
    assert why_kept(request_ended(prompt_ended(), trace=None)) is None


@pytest.mark.parametrize(
    ("reason", "is_fallback"),
    [
        ("speculating", False),
        ("not_worth_it", False),
        ("requested_off", False),
        ("overload_shallow", False),
        ("backoff", True),
        ("breaker_open", True),
        ("killed", True),
        ("rolled_back", True),
        ("overload_plain", True),
    ],
)
def test_fallbacks_are_kept(reason: EffectiveReason, is_fallback: bool) -> None:
    kept = why_kept(request_ended(prompt_ended(), prompt_ended(reason=reason), trace=NOT_SAMPLED))
    assert kept == ("fallback" if is_fallback else None)


@pytest.mark.parametrize(("plain", "found"), [("backoff", ["backoff"]), ("too_costly", []), ("killed", ["killed"])])
def test_a_fallback_for_some_steps_is_one(plain: PlainReason, found: list[str]) -> None:
    ended = prompt_ended()
    prompt = replace(ended, stats=replace(ended.stats, plain_steps={"no_draft": 7, plain: 1}))
    assert fallback_reasons(prompt) == found


def test_a_request_that_was_to_be_plain_since_a_rollback_is_no_fallback() -> None:
    ended = prompt_ended(reason="rolled_back")
    assert fallback_reasons(ended) == ["rolled_back"]
    plain = replace(ended.request, speculation=SpeculationChoice("off", "rolled_back"))
    assert fallback_reasons(replace(ended, request=plain)) == []


def test_a_budget_refills() -> None:
    now = 100.0
    budget = SpanBudget(per_s=2.0, burst=3, clock=lambda: now)
    assert [budget.take() for _ in range(5)] == [True, True, True, False, False]
    now += 0.5
    assert [budget.take() for _ in range(2)] == [True, False]
    now += 60.0
    assert [budget.take() for _ in range(4)] == [True, True, True, False]
