"""Prediction from small runs: curves that are known come back, and the best depth follows the cost."""

import pytest

from prolepsis.engine.drafting.cost import CostCurve
from prolepsis.training.estimate import CEILING, choose, expected_of, fit, speedup
from prolepsis.training.settings import StatedCost, StatedStepCost

COST = StatedStepCost(plain_ms=17.0, token_ms=0.3, draft_ms=0.6, draft_ms_per_1k=0.1)


def test_a_known_power_law_is_found_again() -> None:
    truth = [0.7 - 0.4 * size**-0.4 for size in (1.0, 2.0, 4.0, 8.0, 64.0)]
    curve = fit([1e5, 2e5, 4e5, 8e5], truth[:4])
    assert curve.at(64e5) == pytest.approx(truth[4], abs=0.02)


def test_predictions_stay_below_the_ceiling_and_do_not_fall() -> None:
    curve = fit([1e5, 2e5, 4e5], [0.3, 0.45, 0.6])
    assert 0.6 - 0.02 <= curve.at(4e5) <= curve.at(1e7) <= curve.at(1e12) <= CEILING
    flat = fit([1e5, 2e5, 4e5], [0.4, 0.39, 0.41])
    assert flat.at(1e9) < 0.5


def test_one_run_predicts_nothing() -> None:
    with pytest.raises(ValueError, match="two or more"):
        fit([1e5], [0.3])


def test_expected_tokens_and_speedup_by_hand() -> None:
    assert expected_of([0.5, 0.4], 2) == pytest.approx(1 + 0.5 + 0.2)
    assert expected_of([0.5, 0.4], 3) == pytest.approx(1 + 0.5 + 0.2 + 0.08)
    assert speedup([0.5], 1, COST, 4000) == pytest.approx(1.5 * 17.0 / (17.0 + 0.3 + 0.6 + 0.4))


def test_better_rates_pay_for_deeper_drafts() -> None:
    coverage = {8000: 0.98}
    depths = [choose([rate] * 4, 8000, coverage, COST).depth for rate in (0.1, 0.5, 0.8)]
    assert depths == sorted(depths)
    assert depths[0] < depths[-1]


def test_a_larger_vocabulary_without_more_coverage_does_not_pay() -> None:
    assert choose([0.6] * 4, 8000, {4000: 0.98, 8000: 0.98, 16000: 0.98}, COST).vocab == 4000
    assert choose([0.6] * 4, 8000, {4000: 0.40, 8000: 0.98}, COST).vocab == 8000


def test_costs_that_are_not_stated_are_those_of_this_machine() -> None:
    """The defaults were another machine's, and the best depth followed from them."""
    curve = CostCurve((1, 8, 64), (64, 512), ((4.0, 5.0), (7.5, 8.5), (35.5, 36.5)))
    assert StatedCost().on(curve) == StatedStepCost(4.0, 0.5, 0.6, 0.07)
    assert StatedCost(plain_ms=20.0).on(curve) == StatedStepCost(20.0, 0.5, 0.6, 0.07)
    assert StatedCost(plain_ms=20.0, token_ms=0.1).on(None) == StatedStepCost(20.0, 0.1, 0.6, 0.07)
