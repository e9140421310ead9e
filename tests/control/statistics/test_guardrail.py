"""Guardrails decide as their bounds do, count what they need, and mean what they say for each measure."""

import math
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from prolepsis.control.statistics.arms import ArmScores, Histogram
from prolepsis.control.statistics.guardrail import Guardrail, decide, evaluate
from prolepsis.control.statistics.means import Better, Limit, MeanDifference, Measure, Ratio
from prolepsis.control.statistics.quantiles import QuantileLimit, QuantileRatio

MEASURES: tuple[tuple[Measure, Better], ...] = (
    (MeanDifference(margin=0.1, num_points=17), "lower"),
    (MeanDifference(margin=0.1, num_points=17), "higher"),
    (Ratio(margin=0.2, high=1.0), "lower"),
    (Ratio(margin=0.2, high=1.0), "higher"),
    (Ratio(margin=0.2).referring_to(0.5), "lower"),
    (QuantileRatio(level=0.5, margin=0.2, reference=0.5), "lower"),
    (Limit(limit=0.6, num_points=17), "lower"),
    (Limit(limit=0.4, num_points=17), "higher"),
    (QuantileLimit(level=0.5, limit=0.6), "lower"),
)


def arms(
    guardrail: Guardrail, number: int, canary: Callable[[float], float], seed: int = 0, share: float = 0.4
) -> ArmScores:
    """Values are uniform in [0.1, 0.9], the canary's changed by `canary`."""
    rng = random.Random(seed)
    seen = guardrail.empty()
    for _ in range(number):
        on_canary, value = rng.random() < share, rng.uniform(0.1, 0.9)
        seen = guardrail.observe(seen, "canary" if on_canary else "control", canary(value) if on_canary else value)
    return seen


@pytest.mark.parametrize(("measure", "better"), MEASURES)
def test_no_difference_passes_and_damage_fails(measure: Measure, better: Better) -> None:
    guardrail = Guardrail(name="g", metric="m", measure=measure, better=better)
    worse = (lambda x: min(1.0, 1.8 * x)) if better == "lower" else (lambda x: 0.3 * x)
    fine, bad = arms(guardrail, 3000, lambda x: x), arms(guardrail, 3000, worse)
    assert decide(guardrail, fine, 0.4, fail_alpha=0.01, pass_alpha=0.05)[0] == "pass"
    assert decide(guardrail, bad, 0.4, fail_alpha=0.01, pass_alpha=0.05)[0] == "fail"


def test_a_ratio_without_a_bound_waits_for_what_the_control_showed() -> None:
    guardrail = Guardrail(name="g", metric="ms", measure=Ratio(margin=0.1))
    assert decide(guardrail, ArmScores.empty(33), 0.5, fail_alpha=0.01, pass_alpha=0.05)[0] == "inconclusive"
    assert guardrail.measure.reference_from(Histogram()) is None
    assert guardrail.measure.reference_from(Histogram().observe(10.0).observe(14.0)) == 12.0
    assert guardrail.referring_to(12.0).measure == Ratio(margin=0.1, high=24.0, baseline=12.0)
    assert Ratio(margin=0.1, high=50.0).referring_to(12.0) == Ratio(margin=0.1, high=50.0, baseline=12.0)


@pytest.mark.parametrize(("measure", "better"), MEASURES)
@pytest.mark.parametrize("number", [60, 300, 2000])
def test_it_decides_when_a_bound_passes_the_margin(measure: Measure, better: Better, number: int) -> None:
    guardrail = Guardrail(name="g", metric="m", measure=measure, better=better, minimum_samples=1)
    for i, factor in enumerate((0.5, 1.0, 1.1)):
        seen = arms(guardrail, number, lambda x, f=factor: min(1.0, f * x), seed=i)  # type: ignore[misc]
        found = evaluate(guardrail, seen, 0.4, fail_alpha=0.01, pass_alpha=0.05)
        above, below = found.lower > found.allowed, found.upper < found.allowed
        by_bounds = {(False, False): "inconclusive", (True, False): "fail", (False, True): "pass"}[above, below]
        if better == "higher":
            by_bounds = {"fail": "pass", "pass": "fail"}.get(by_bounds, by_bounds)
        assert found.outcome == by_bounds


def test_estimates_and_bounds_are_in_the_units_that_people_read() -> None:
    rate = Guardrail(name="r", metric="rate", measure=MeanDifference(margin=0.05, num_points=33))
    cost = Guardrail(name="c", metric="eur", measure=Ratio(margin=0.1, high=4.0))
    for guardrail, canary, control, estimate, allowed in (
        (rate, 0.5, 0.25, 0.25, 0.05),
        (cost, 1.5, 1.0, 1.5, 1.1),
    ):
        seen = guardrail.empty()
        for _ in range(400):
            seen = guardrail.observe(guardrail.observe(seen, "canary", canary), "control", control)
        found = evaluate(guardrail, seen, 0.5, fail_alpha=0.01, pass_alpha=0.05)
        assert found.estimate == pytest.approx(estimate)
        assert found.allowed == pytest.approx(allowed)
        assert found.lower < estimate < found.upper


def test_below_the_minimum_nothing_is_decided() -> None:
    guardrail = Guardrail(name="g", metric="m", measure=MeanDifference(margin=0.01), minimum_samples=50)
    seen = guardrail.empty()
    for _ in range(49):
        seen = guardrail.observe(guardrail.observe(seen, "canary", 1.0), "control", 0.0)
    assert decide(guardrail, seen, 0.5, fail_alpha=0.01, pass_alpha=0.05)[0] == "inconclusive"
    seen = guardrail.observe(guardrail.observe(seen, "canary", 1.0), "control", 0.0)
    assert decide(guardrail, seen, 0.5, fail_alpha=0.01, pass_alpha=0.05)[0] == "fail"


def test_a_limit_does_not_wait_for_the_control() -> None:
    guardrail = Guardrail(name="g", metric="mismatch", measure=Limit(limit=0.01))
    seen = guardrail.empty()
    for _ in range(30):
        seen = guardrail.observe(seen, "canary", 1.0)
    assert decide(guardrail, seen, 0.5, fail_alpha=0.001, pass_alpha=0.05)[0] == "fail"


def test_a_quantile_of_the_control_that_is_not_known_decides_nothing() -> None:
    guardrail = Guardrail(name="p95", metric="ms", measure=QuantileRatio(level=0.95, margin=0.1))
    assert decide(guardrail, guardrail.empty(), 0.5, fail_alpha=0.01, pass_alpha=0.05)[0] == "inconclusive"
    assert guardrail.measure.reference_from(Histogram().observe(100.0)) == pytest.approx(100.0, rel=0.02)


def test_calibration_changes_speed_and_not_what_is_tested() -> None:
    history = Histogram().observe(0.2).observe(0.4)
    for measure, better in MEASURES:
        before = measure.contrast(better, 0.4)
        reference = measure.reference_from(history)
        after = (measure if reference is None else measure.referring_to(reference)).contrast(better, 0.4)
        assert replace(after, centre=before.centre) == before


@pytest.mark.parametrize("better", ["lower", "higher"])
def test_at_the_margin_either_error_has_at_most_its_probability_over_all_looks(better: Better) -> None:
    """Zeros and ones whose rate drifts on both arms alike, the canary's by 0.1 apart; looked at every ten requests."""
    guardrail = Guardrail(name="g", metric="m", measure=MeanDifference(margin=0.1), better=better, minimum_samples=1)
    apart = 0.1 if better == "lower" else -0.1
    rng = random.Random(8)
    outcomes = []
    for _ in range(250):
        seen, told = guardrail.empty(), set()
        for i in range(1, 301):
            on_canary = rng.random() < 0.3
            chance = 0.5 + 0.3 * math.sin(i / 30) + apart * on_canary
            seen = guardrail.observe(seen, "canary" if on_canary else "control", float(rng.random() < chance))
            if i % 10 == 0:
                told.add(decide(guardrail, seen, 0.3, fail_alpha=0.2, pass_alpha=0.2)[0])
        outcomes.append(told)
    assert 0 < sum("fail" in told for told in outcomes) <= 50
    assert 0 < sum("pass" in told for told in outcomes) <= 50


def test_an_estimate_is_of_all_of_a_value_and_the_test_of_what_it_is_clipped_to() -> None:
    """Eight tokens a pass were shown as 1.744, where the bound on 1.186 clips them."""
    measure = Limit(limit=1.186, low=1.0, high=1.744, num_points=33)
    guardrail = Guardrail(name="far", metric="length", measure=measure, better="higher")
    scores = guardrail.empty()
    for _ in range(40):
        scores = guardrail.observe(scores, "canary", 7.9)
    result = evaluate(guardrail, scores, 0.5, fail_alpha=0.01, pass_alpha=0.05)
    assert result.outcome == "pass"
    assert result.estimate == pytest.approx(7.9)
    assert result.lower <= result.estimate <= result.upper
    assert result.is_clipped
    ratio = Guardrail(name="cost", metric="ms", measure=Ratio(margin=0.1, high=2.0))
    both = ratio.observe(ratio.observe(ratio.empty(), "canary", 6.0), "control", 3.0)
    seen = evaluate(ratio, both, 0.5, fail_alpha=0.01, pass_alpha=0.05)
    assert seen.is_clipped
    assert seen.estimate == pytest.approx(2.0)
