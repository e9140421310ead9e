"""What speculation saves: found where there is something, negative where it costs, and no more certain than it is."""

import random
from dataclasses import replace

import pytest

from prolepsis.control.cost.comparison import CALIBRATION, MAX_GROUPS, ArmComparison, Comparison, Comparisons
from prolepsis.control.cost.meter import MAX_VALUES, OTHER, Experiment, RequestCost, Usage
from prolepsis.core.stats import DeviceSeconds
from prolepsis.core.traffic_sums import Interval
from tests.simulation.edit_costs import EditTraffic
from tests.simulation.live_control import quantile, run

CONTEST = Experiment("code@1", run=1, stage=0, share=0.5)


def cost(draw: random.Random, factor: float, *, tenant: str = "acme") -> RequestCost:
    """Return a request of about 10 ms a token, `factor` times that where it speculates; its prediction is right."""
    on_canary = draw.random() < CONTEST.share
    tokens, plain = draw.randint(5, 50), draw.lognormvariate(-4.6, 0.4)
    device = DeviceSeconds(plain=tokens * plain, predicted_plain=tokens * plain)
    if on_canary:
        device.plain *= factor
    return RequestCost(
        route="/v1/completions",
        tenant=tenant,
        proposer="suffix" if on_canary else "none",
        num_output_tokens=tokens,
        device=device,
        experiment=CONTEST,
        arm="canary" if on_canary else "control",
    )


def shown(factor: float, number: int, seed: int = 0) -> list[ArmComparison]:
    draw, comparison = random.Random(seed), Comparison(CONTEST)
    for i in range(number):
        comparison.observe(cost(draw, factor, tenant="acme" if i % 2 else "other"))
    return list(comparison.compared())


@pytest.mark.parametrize("factor", [0.6, 1.3])
def test_savings_are_found_by_route_tenant_and_proposer(factor: float) -> None:
    found = {(one.by, one.value): one for one in shown(factor, 3000)}
    assert set(found) == {
        ("all", ""), ("route", "/v1/completions"), ("tenant", "acme"), ("tenant", "other"), ("rule", "default"),
        ("proposer", "suffix"),
    }  # fmt: skip
    for one in found.values():
        assert one.saved.estimate == pytest.approx(1.0 - factor, abs=0.08)
        assert one.saved_by_prediction.estimate == pytest.approx(1.0 - factor, abs=0.01)
        assert one.device_s_per_token == pytest.approx(factor * (one.predicted_device_s_per_token or 0.0))
        assert one.randomised == (one.by != "proposer")
    every = found["all", ""]
    assert every.num_canary + every.num_control == 3000, "early requests count"
    for saving in (every.saved, every.saved_by_prediction):
        assert saving.lower is not None
        assert saving.upper is not None
        assert saving.lower < 1.0 - factor < saving.upper
        assert (saving.lower > 0.0) == (factor < 1.0)
        assert (saving.upper < 0.0) == (factor > 1.0)
    assert found["proposer", "suffix"].saved.lower is None  # nothing was drawn by chance
    assert found["proposer", "suffix"].saved_by_prediction.lower is not None


def test_bounds_cover_the_truth_however_often_they_are_looked_at() -> None:
    """At most 5 % of runs miss at any look."""
    missed = 0
    for seed in range(40):
        draw, comparison = random.Random(seed), Comparison(CONTEST)
        misses = False
        for number in range(600):
            comparison.observe(cost(draw, 0.8))
            if number % 100 == 99:
                saving = next(comparison.compared()).saved
                misses |= saving.lower is not None and saving.lower > 0.2
                misses |= saving.upper is not None and saving.upper < 0.2
        missed += misses
    assert missed <= 2


def test_learning_from_control_requests_is_not_charged_to_the_control() -> None:
    draw, comparison = random.Random(0), Comparison(CONTEST)
    for _ in range(200):
        one = cost(draw, 1.0)
        one.device.propose = one.device.plain if one.arm == "control" else 0.0
        comparison.observe(one)
    every = next(comparison.compared())
    assert every.saved.estimate == pytest.approx(0.0, abs=0.15)
    assert every.control_device_s_per_token == pytest.approx(0.01, rel=0.3)


def test_few_requests_have_no_bounds_and_none_no_estimate() -> None:
    [every] = shown(0.5, 0)
    assert (every.num_canary, every.saved.estimate, every.saved_by_prediction.estimate) == (0, None, None)
    every = shown(0.5, 2 * CALIBRATION - 10)[0]
    assert (every.saved, every.saved_by_prediction) == (Interval(None), Interval(None))
    assert every.device_s_per_token is not None
    assert every.control_device_s_per_token is not None


def test_early_requests_of_both_arms_count() -> None:
    early = shown(0.5, 4 * CALIBRATION)[0]
    assert early.num_canary + early.num_control == 4 * CALIBRATION
    assert early.saved.estimate is not None
    assert early.saved.lower is not None
    assert early.saved.lower > 0.0, "a half saved shows within eighty requests"


def test_a_saving_is_one_less_the_figures_beside_it() -> None:
    """Few long answers took most of the time: a mean over requests would say something else."""
    comparison, draw = Comparison(CONTEST), random.Random(0)
    for i in range(200):
        one = cost(draw, 1.0)
        long = i % 10 == 0
        tokens, factor = (1000, 0.9) if long else (10, 0.3)
        device = DeviceSeconds(prefill=0.05, plain=0.01 * tokens * (factor if one.arm == "canary" else 1.0))
        comparison.observe(replace(one, num_output_tokens=tokens, num_computed_tokens=50, device=device))
    every = next(comparison.compared())
    assert every.device_s_per_token is not None
    assert every.control_device_s_per_token is not None
    assert every.saved.estimate == pytest.approx(1.0 - every.device_s_per_token / every.control_device_s_per_token)
    assert every.saved.estimate == pytest.approx(0.13, abs=0.05)


def test_a_new_stage_begins_again_and_the_old_one_does_not_come_back() -> None:
    comparisons, draw = Comparisons(), random.Random(0)
    later = replace(CONTEST, stage=1, share=0.75)
    for _ in range(100):
        comparisons.observe(cost(draw, 0.5))
    comparisons.observe(replace(cost(draw, 0.5), experiment=later))
    comparisons.observe(cost(draw, 0.5))
    assert comparisons.newest["code@1"].experiment == later
    comparisons.observe(replace(cost(draw, 0.5), experiment=None))
    for number in range(200):
        comparisons.observe(replace(cost(draw, 0.5), experiment=replace(CONTEST, rollout_id=f"r{number}")))
    assert len(comparisons.newest) == 64


def test_values_of_a_dimension_are_bounded() -> None:
    usage, comparison, draw = Usage(), Comparison(CONTEST), random.Random(0)
    for number in range(500):
        one = cost(draw, 1.0, tenant=f"t{number % 100}")
        usage.observe(one)
        comparison.observe(one)
    assert len(usage.by["tenant"]) == MAX_VALUES + 1
    assert usage.by["tenant"][OTHER].num_requests == 5 * (100 - MAX_VALUES)
    assert sum(spent.device.total for spent in usage.by["tenant"].values()) == pytest.approx(usage.total.device.total)
    tenants = [one for one in comparison.compared() if one.by == "tenant"]
    assert len(tenants) == MAX_GROUPS + 1
    every = next(comparison.compared())
    assert sum(one.num_canary for one in tenants) == every.num_canary


def test_a_saving_of_a_quarter_shows_within_two_hundred_requests() -> None:
    runs = [run(EditTraffic(), seed, 200) for seed in range(15)]
    assert quantile(runs, 0.5) <= 200
    assert sum(one.missed for one in runs) <= 1


def test_bounds_are_right_where_nothing_is_saved_or_drafts_cost_more() -> None:
    for traffic in (EditTraffic(saving=0.0), EditTraffic(saving=-0.15), EditTraffic(noise=0.5, outliers=0.03)):
        runs = [run(traffic, seed, 200) for seed in range(8)]
        assert sum(one.missed for one in runs) <= 1
