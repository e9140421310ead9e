"""Series of HTTP requests that have ended."""

from dataclasses import replace

import pytest

from prolepsis.core.ended import Assignment, PromptEnded, RequestAbout, RequestEnded
from prolepsis.core.requests import GenerateRequest, GrammarSpec, LatencyTarget, SamplingParams
from prolepsis.core.stats import DeviceSeconds, EffectiveMode, Mode, RequestStats
from prolepsis.core.telemetry.metrics import Metrics
from prolepsis.core.token_intervals import TokenIntervals
from tests.core.telemetry.series import value

ABOUT = RequestAbout(answer_id="a", tenant="acme", key_id="k", tier="premium", route="/v1/x", model="tiny")
CANARY = Assignment(rollout_id="r", run=1, stage=0, arm="canary", mode="on")
REQUEST = GenerateRequest("a", (1, 2), SamplingParams())


def stats(mode: Mode = "on") -> RequestStats:
    return RequestStats(
        num_output_tokens=5,
        queue_s=0.25,
        compute_s=0.75,
        first_token_s=0.5,
        prefill_s=0.375,
        total_s=1.0,
        device=DeviceSeconds(plain=0.75),
        mode=EffectiveMode(mode, "speculating" if mode == "on" else "rule_off", 1),
    )


def prompt(mode: Mode = "on") -> PromptEnded:
    return PromptEnded(
        request=REQUEST,
        end="finished",
        error=None,
        stats=stats(mode),
        num_shown_tokens=5,
        answer="complete",
        tokens=(),
        finish_reasons=("stop",),
        delivery={},
        waited_s=2.0,
        stream_s=0.125,
    )


def ended(*prompts: PromptEnded, about: RequestAbout = ABOUT) -> RequestEnded:
    return RequestEnded(about=about, end="finished", error=None, prompts=prompts or (prompt(),))


def test_requests_are_counted_by_route_and_by_rule() -> None:
    metrics = Metrics()
    about = replace(ABOUT, policy_rule="chat", assignment=CANARY)
    metrics.requests.ended(ended(about=about))
    metrics.requests.ended(replace(ended(about=about), end="left"))
    by_rule = {"rule": "chat", "arm": "canary", "mode": "on"}
    for end in ("finished", "left"):
        assert value(metrics, "requests_total", route="/v1/x", tier="premium", outcome=end) == 1
        assert value(metrics, "rule_requests_total", **by_rule, outcome=end) == 1
    assert value(metrics, "rule_time_to_first_token_seconds_count", **by_rule, outcome="finished") == 2


def test_drafted_and_plain_arms_of_a_route_and_tier_have_latencies_of_their_own() -> None:
    metrics = Metrics()
    metrics.requests.ended(ended(about=replace(ABOUT, assignment=CANARY)))
    metrics.requests.ended(ended(prompt("off"), about=replace(ABOUT, assignment=replace(CANARY, arm="holdout"))))
    for arm, mode in (("canary", "on"), ("holdout", "off")):
        by = {"route": "/v1/x", "tier": "premium", "arm": arm, "mode": mode, "outcome": "finished"}
        assert value(metrics, "time_to_first_token_seconds_count", **by) == 1


def test_latencies_begin_when_the_request_arrives() -> None:
    metrics = Metrics()
    metrics.requests.ended(ended())
    by = {"route": "/v1/x", "tier": "premium", "mode": "on", "outcome": "finished"}
    assert value(metrics, "time_to_first_token_seconds_sum", **by, arm="none") == 2.5
    assert value(metrics, "e2e_request_latency_seconds_sum", **by) == 3.0
    assert value(metrics, "request_time_per_output_token_seconds_sum", **by, arm="none") == 0.125
    stages = {"queue": 2.25, "prefill": 0.375, "decode": 0.5, "inference": 0.75, "stream": 0.125}
    for stage, seconds in stages.items():
        assert value(metrics, f"request_{stage}_time_seconds_sum", tier="premium") == seconds


def test_answers_that_were_not_decoded_or_finished_do_not_count_as_fast() -> None:
    metrics = Metrics()
    cached, left = replace(prompt(), answer="cached"), replace(prompt(), answer="cut", end="left")
    metrics.requests.ended(ended(cached, left))
    for outcome, number in (("left", 1.0), ("finished", None)):
        by = {"route": "/v1/x", "tier": "premium", "mode": "on", "outcome": outcome}
        assert value(metrics, "e2e_request_latency_seconds_count", **by) == number
        for name in ("time_to_first_token", "request_time_per_output_token"):
            assert value(metrics, f"{name}_seconds_count", **by, arm="none") == number
            by_rule = {"rule": "none", "arm": "none", "mode": "on", "outcome": outcome}
            assert value(metrics, f"rule_{name}_seconds_count", **by_rule) == number


def test_the_server_knows_how_long_a_request_lasted_whose_client_left() -> None:
    metrics = Metrics()
    left = replace(prompt("off"), answer="unreported", end="left", began_at=10.0)
    metrics.requests.ended(replace(ended(left), ended_at=11.5))
    by = {"route": "/v1/x", "tier": "premium", "mode": "off", "outcome": "left"}
    assert value(metrics, "e2e_request_latency_seconds_sum", **by) == 3.5
    assert value(metrics, "time_to_first_token_seconds_count", **by, arm="none") is None


def test_waits_and_the_time_of_a_token_differ_where_several_arrive_at_once() -> None:
    intervals = TokenIntervals()
    for at, num_tokens in ((1.0, 1), (1.04, 4), (1.04, 0), (1.06, 1)):
        intervals.see(0, num_tokens, at)
    metrics = Metrics()
    metrics.requests.ended(ended(replace(prompt(), intervals=intervals)))
    by = {"tier": "premium", "mode": "on"}
    for name, number in (("inter_token_latency", 2), ("amortized_token_latency", 5)):
        assert value(metrics, f"{name}_seconds_count", **by) == number
        assert value(metrics, f"{name}_seconds_sum", **by) == pytest.approx(0.06)
    assert value(metrics, "inter_token_latency_seconds_bucket", **by, le="0.03") == 1
    assert value(metrics, "amortized_token_latency_seconds_bucket", **by, le="0.015") == 4


@pytest.mark.parametrize(
    ("progress", "stage"),
    [
        (None, "admission"),
        (RequestStats(), "step"),
        (RequestStats(queue_s=0.1), "queue"),
        (RequestStats(device=DeviceSeconds(prefill=0.1)), "prefill"),
        (RequestStats(num_output_tokens=1, device=DeviceSeconds(prefill=0.1)), "decode"),
    ],
)
def test_a_deadline_is_counted_by_the_stage_that_it_cut(progress: RequestStats | None, stage: str) -> None:
    metrics = Metrics()
    late = () if progress is None else (replace(prompt(), end="failed", answer="cut", stats=progress),)
    metrics.requests.ended(RequestEnded(about=ABOUT, end="failed", error="deadline_exceeded", prompts=late))
    assert value(metrics, "request_timeouts_total", tier="premium", stage=stage) == 1


HELD = replace(prompt(), request=replace(REQUEST, grammar=GrammarSpec("lark", "{}"), n=4))


@pytest.mark.parametrize(
    ("answer", "counts"),
    [
        (HELD, {("lark", "valid"): 1}),
        (replace(HELD, finish_reasons=("length",)), {("lark", "cut"): 1}),
        (replace(HELD, finish_reasons=("content_filter",)), {}),
        (replace(prompt(), whole_calls=(True, False)), {("tool_calls", "valid"): 1, ("tool_calls", "invalid"): 1}),
        (  # a tool call that a grammar held was counted twice, and of several samples only one
            replace(HELD, finish_reasons=("tool_calls", "length", "stop", "length"), whole_calls=(True, False)),
            {("tool_calls", "valid"): 1, ("tool_calls", "invalid"): 1, ("lark", "valid"): 1, ("lark", "cut"): 1},
        ),
    ],
)
def test_each_answer_with_a_form_is_counted_once(answer: PromptEnded, counts: dict[tuple[str, str], int]) -> None:
    metrics = Metrics()
    metrics.requests.ended(ended(answer))
    found = {
        (kind, result): number
        for kind in ("lark", "tool_calls")
        for result in ("valid", "cut", "invalid")
        if (number := value(metrics, "structured_answers_total", kind=kind, mode="on", result=result))
    }
    assert found == counts


def test_tenants_have_series_only_where_they_are_named() -> None:
    metrics = Metrics(tenants=["acme"])
    for tenant in ("acme", "basil", ""):
        metrics.requests.ended(ended(about=replace(ABOUT, tenant=tenant)))
    for tenant in ("acme", "other", "default"):
        assert value(metrics, "tenant_requests_total", tenant=tenant, outcome="finished") == 1


def test_samples_that_are_decoded_at_the_same_time_make_no_token_faster() -> None:
    metrics = Metrics()
    of_five = prompt()
    of_ten = replace(of_five, request=replace(REQUEST, n=2), stats=replace(of_five.stats, num_output_tokens=10))
    metrics.requests.ended(ended(of_ten))
    by = {"route": "/v1/x", "tier": "premium", "arm": "none", "mode": "on", "outcome": "finished"}
    assert value(metrics, "request_time_per_output_token_seconds_sum", **by) == 0.5 / 4


def test_targets_are_counted_each_and_tokens_of_requests_that_keep_all() -> None:
    metrics = Metrics()
    for target in (None, LatencyTarget(125.0, 500.0), LatencyTarget(125.0, 499.0), LatencyTarget(125.0)):
        metrics.requests.ended(ended(replace(prompt(), request=replace(REQUEST, target=target))))
    assert value(metrics, "targets_total", kind="per_token", result="met") == 3
    assert value(metrics, "targets_total", kind="first_token", result="met") == 1
    assert value(metrics, "targets_total", kind="first_token", result="missed") == 1
    assert value(metrics, "target_tokens_total", result="met") == 10
    assert value(metrics, "target_tokens_total", result="missed") == 5
