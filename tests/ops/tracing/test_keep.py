from dataclasses import replace

import pytest
from opentelemetry.sdk.trace.sampling import Decision, TraceIdRatioBased

from prolepsis.core.ended import End, RequestEnded
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


def ended(end: End = "finished", reason: EffectiveReason = "speculating") -> RequestEnded:
    return request_ended(prompt_ended(), prompt_ended(end=end, reason=reason), end=end, trace=NOT_SAMPLED)


@pytest.mark.parametrize(
    ("request_ended", "kept"),
    [
        *((ended(end), None) for end in ("finished", "left", "refused", "broken")),
        *((ended(end), "error") for end in ("failed", "aborted")),
        *((ended(reason=why), None) for why in ("speculating", "not_worth_it", "requested_off", "overload_shallow")),
        *((ended(reason=why), "fallback") for why in ("backoff", "breaker_open", "killed", "rolled_back")),
        (ended(reason="overload_plain"), "fallback"),
        (replace(ended("failed"), about=request_ended().about), "sampled"),
        (request_ended(prompt_ended(), trace=None), None),
    ],
)
def test_errors_and_fallbacks_are_kept(request_ended: RequestEnded, kept: Kept | None) -> None:
    assert why_kept(request_ended) == kept


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
