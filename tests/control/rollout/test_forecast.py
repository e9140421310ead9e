"""What is told before a rollout starts."""

import math

import pytest

from prolepsis.control.rollout.forecast import forecast
from prolepsis.control.rollout.settings import RolloutSettings, settings_of
from tests.control.policy.policies import policy


def settings(guardrail: str, rollout: str = "{}") -> RolloutSettings:
    text = f"default: {{mode: on, rollout: {rollout}, guardrails: [{{name: g, {guardrail}}}]}}"
    return settings_of(policy(text).default_terms)


@pytest.mark.parametrize(
    "guardrail",
    [
        "metric: acceptance_rate, limit: 0.3",
        "metric: acceptance_length, limit: 1.2",
        "metric: error_rate, margin: 0.05",
        "metric: error_rate, limit: 0.05",
        "metric: structured_validity, margin: 0.05",
        "metric: latency_per_token_p50_ms, margin: 0.1",
        "metric: latency_p95_ms, margin: 0.5",
        "metric: latency_p95_ms, limit: 100",
        "metric: correctness, limit: 0.9",
        "metric: cost_per_token, margin: 0.1",
        "metric: cost_per_token, limit: 20",
    ],
)
def test_every_stage_has_an_end_that_comes_sooner_with_more_requests(guardrail: str) -> None:
    slow, fast = (forecast(settings(guardrail, "{min_step_s: 1}"), rate) for rate in (1.0, 10.0))
    for one, other in zip(slow, fast, strict=True):
        assert one.wait is not None
        assert other.wait is not None
        assert 1.0 <= other.wait.least_s <= other.wait.most_s < math.inf
        assert one.wait.most_s > other.wait.most_s


def test_correctness_is_seen_of_replayed_requests_only() -> None:
    same, errors = settings("metric: correctness, limit: 0.9"), settings("metric: error_rate, limit: 0.05")
    assert forecast(same, 100.0, 0.01) == forecast(same, 1.0)
    assert forecast(errors, 100.0, 0.01) == forecast(errors, 100.0)
    wait = forecast(same, 100.0, 0.0)[0].wait
    assert wait is not None
    assert math.isinf(wait.least_s)


def test_the_least_time_counts_and_a_dry_run_decides_nothing() -> None:
    [stage] = forecast(settings("metric: error_rate, limit: 0.2", "{step_weights: 50, min_step_s: 7000}"), 100.0)
    assert stage.wait is not None
    assert stage.wait.least_s == stage.wait.most_s == 7000.0
    [stage] = forecast(settings("metric: error_rate, limit: 0.2, dry_run: true", "{step_weights: 50}"), 100.0)
    assert stage.wait is None


def test_the_slowest_guardrail_decides_and_dry_runs_are_not_waited_for() -> None:
    def most_s(guardrails: str) -> float:
        [stage] = forecast(settings(guardrails, "{step_weights: 50, min_step_s: 0}"), 1.0)
        assert stage.wait is not None
        return stage.wait.most_s

    quick, slow = "metric: error_rate, limit: 0.5", "metric: error_rate, limit: 0.02"
    assert most_s(f"{quick}}}, {{name: h, {slow}") == most_s(slow) > most_s(quick)
    assert most_s(f"{quick}}}, {{name: h, {slow}, dry_run: true") == most_s(quick)
