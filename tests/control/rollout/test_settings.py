"""A rule's terms as stages and guardrails, and how long they are expected to take."""

import math
from textwrap import indent

import pytest

from prolepsis.control.policy.check import InvalidPolicy
from prolepsis.control.rollout.forecast import forecast
from prolepsis.control.rollout.settings import RolloutSettings, settings_of
from prolepsis.control.statistics.guardrail import Guardrail
from prolepsis.control.statistics.means import Limit, MeanDifference, Ratio
from prolepsis.control.statistics.quantiles import QuantileLimit, QuantileRatio
from tests.control.policy.policies import policy

GUARDRAILS = """
guardrails:
  - {name: taken, metric: acceptance_rate, limit: 0.3}
  - {name: typical, metric: latency_per_token_p50_ms, margin: 0.1}
  - {name: slow, metric: latency_p95_ms, limit: 2000}
  - {name: errors, metric: error_rate, margin: 0.02}
  - {name: forms, metric: structured_validity, margin: 0.02, dry_run: true}
  - {name: same, metric: correctness, limit: 0.99}
"""


def settings(rollout: str, guardrails: str = GUARDRAILS, share: int = 100) -> RolloutSettings:
    text = f"default:\n  mode: on\n  shadow_percentage: {share}\n  rollout: {rollout}\n{indent(guardrails, '  ')}"
    return settings_of(policy(text).default_terms)


def test_stages_begin_in_shadow_where_acceptance_decides() -> None:
    found = settings("{stages: [2, 20], holdout: 10, gate: automatic, min_stage_s: 5, min_samples: 7}")
    assert [(s.name, s.kind, s.share, s.manual_gate, s.minimum_s) for s in found.stages] == [
        ("shadow", "shadow", 0.9, False, 5.0),
        ("canary 2%", "canary", 0.02, False, 5.0),
        ("canary 20%", "canary", 0.2, False, 5.0),
    ]
    assert [g.name for g in found.stages[0].guardrails] == ["taken"]
    assert {g.minimum_samples for stage in found.stages for g in stage.guardrails} == {7}
    assert found.holdout == 0.1
    assert settings("{}", share=10).stages[0].share == 0.1
    assert settings("{}", share=0).stages[0].kind == "canary"
    assert settings("{}", "guardrails: [{name: e, metric: error_rate, limit: 0.1}]").stages[0].kind == "canary"


def test_each_metric_has_its_test() -> None:
    taken, typical, slow, errors, forms, same = settings("{}").stages[1].guardrails
    assert (taken.metric, taken.better, taken.measure) == ("acceptance", "higher", Limit(limit=0.3, num_points=33))
    assert (typical.metric, typical.measure) == ("latency_per_token_ms", QuantileRatio(level=0.5, margin=0.1))
    assert (slow.metric, slow.measure) == ("latency_ms", QuantileLimit(level=0.95, limit=2000.0))
    assert (errors.better, errors.measure) == ("lower", MeanDifference(margin=0.02))
    assert (same.metric, same.better, same.measure) == ("correctness", "higher", Limit(limit=0.99))
    assert forms == Guardrail(
        name="forms", metric="validity", measure=MeanDifference(margin=0.02), better="higher", dry_run=True
    )


def test_the_length_of_a_step_counts_from_one_token_on_and_not_in_shadow() -> None:
    found = settings("{stages: 50}", "guardrails: [{name: far, metric: acceptance_length, limit: 1.25}]")
    [canary] = found.stages
    assert canary.kind == "canary"
    assert canary.guardrails[0].better == "higher"
    assert canary.guardrails[0].measure == Limit(limit=1.25, low=1.0, high=2.0, num_points=33)


def test_costs_are_compared_as_means_of_amounts() -> None:
    both = """
guardrails:
  - {name: dearer, metric: cost_per_token, margin: 0.1}
  - {name: dear, metric: cost_per_token, limit: 20}
  - {name: cheaper, metric: cost_per_token, gain: 0.2}
"""
    dearer, dear, cheaper = settings("{}", both).stages[0].guardrails
    assert (dearer.metric, dearer.better, dearer.measure) == ("device_ms_per_token", "lower", Ratio(margin=0.1))
    assert not dearer.measure.ready
    assert dear.measure == Limit(limit=20.0, high=80.0, num_points=33)
    assert cheaper.measure == Ratio(margin=-0.2)


@pytest.mark.parametrize(
    ("guardrail", "said"),
    [
        ("metric: error_rate", "exactly one of margin, limit, gain"),
        ("metric: error_rate, margin: 0.1, limit: 0.1", "exactly one of margin, limit, gain"),
        ("metric: cost_per_token, margin: 0.1, gain: 0.1", "exactly one of margin, limit, gain"),
        ("metric: cost_per_token, gain: 1", "gain is 1"),
        ("metric: speedup, margin: 0.1", "speedup"),
    ],
)
def test_metrics_that_are_not_measured_are_refused_by_name(guardrail: str, said: str) -> None:
    with pytest.raises(InvalidPolicy, match=said):
        settings("{}", f"guardrails: [{{name: g, {guardrail}}}]")


def settings_with(guardrail: str, rollout: str = "{}") -> RolloutSettings:
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
        "metric: cost_per_token, gain: 0.1",
    ],
)
def test_every_stage_has_an_end_that_comes_sooner_with_more_requests(guardrail: str) -> None:
    slow, fast = (forecast(settings_with(guardrail, "{min_stage_s: 1}"), rate) for rate in (1.0, 10.0))
    for one, other in zip(slow, fast, strict=True):
        assert one.wait is not None
        assert other.wait is not None
        assert 1.0 <= other.wait.least_s <= other.wait.most_s < math.inf
        assert one.wait.most_s > other.wait.most_s


def test_correctness_is_seen_of_replayed_requests_only() -> None:
    same, errors = settings_with("metric: correctness, limit: 0.9"), settings_with("metric: error_rate, limit: 0.05")
    assert forecast(same, 100.0, 0.01) == forecast(same, 1.0)
    assert forecast(errors, 100.0, 0.01) == forecast(errors, 100.0)
    wait = forecast(same, 100.0, 0.0)[0].wait
    assert wait is not None
    assert math.isinf(wait.least_s)


def test_the_least_time_counts_and_a_dry_run_decides_nothing() -> None:
    [stage] = forecast(settings_with("metric: error_rate, limit: 0.2", "{stages: 50, min_stage_s: 7000}"), 100.0)
    assert stage.wait is not None
    assert stage.wait.least_s == stage.wait.most_s == 7000.0
    [stage] = forecast(settings_with("metric: error_rate, limit: 0.2, dry_run: true", "{stages: 50}"), 100.0)
    assert stage.wait is None


def test_the_slowest_guardrail_decides_and_dry_runs_are_not_waited_for() -> None:
    def most_s(guardrails: str) -> float:
        [stage] = forecast(settings_with(guardrails, "{stages: 50, min_stage_s: 0}"), 1.0)
        assert stage.wait is not None
        return stage.wait.most_s

    quick, slow = "metric: error_rate, limit: 0.5", "metric: error_rate, limit: 0.02"
    assert most_s(f"{quick}}}, {{name: h, {slow}") == most_s(slow) > most_s(quick)
    assert most_s(f"{quick}}}, {{name: h, {slow}, dry_run: true") == most_s(quick)
