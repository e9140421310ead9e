"""Robbins' mixture against sums over its definition."""

import math

import pytest

from prolepsis.statistics.arms import log_evidence_against


@pytest.mark.parametrize(("successes", "trials"), [(0, 0), (0, 3), (2, 3), (7, 20), (20, 20)])
def test_it_is_the_likelihood_averaged_over_all_probabilities(successes: int, trials: int) -> None:
    grid = [(i + 0.5) / 20000 for i in range(20000)]
    averaged = sum(q**successes * (1 - q) ** (trials - successes) for q in grid) / len(grid)
    stated = 0.3**successes * 0.7 ** (trials - successes)
    assert math.exp(log_evidence_against(0.3, successes, trials)) == pytest.approx(averaged / stated, rel=1e-4)


@pytest.mark.parametrize("probability", [0.05, 0.5])
def test_its_expectation_is_one_where_the_probability_is_right(probability: float) -> None:
    expected = sum(
        math.comb(12, k) * probability**k * (1 - probability) ** (12 - k)
        * math.exp(log_evidence_against(probability, k, 12))
        for k in range(13)
    )  # fmt: skip
    assert expected == pytest.approx(1.0)
