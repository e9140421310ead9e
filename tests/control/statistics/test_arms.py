"""Histograms keep counts, means and quantiles, merge like streams, and promise no more wealth than the values have."""

import math
import random
from functools import reduce
from statistics import NormalDist

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prolepsis.control.statistics.arms import WIDTH, Histogram, ScoreHistogram, log_evidence_against

scores = st.lists(st.floats(0.0, 1.0), max_size=30)


def histogram(values: list[float], num_points: int) -> ScoreHistogram:
    return reduce(ScoreHistogram.observe, values, ScoreHistogram.empty(num_points))


def test_zeros_and_ones_are_kept_exactly() -> None:
    assert histogram([0.0, 1.0, 1.0], 2).weights == (1.0, 2.0)


def test_a_value_is_split_between_its_neighbours_by_its_distance() -> None:
    assert ScoreHistogram.empty(5).observe(0.3125).weights == (0.0, 0.75, 0.25, 0.0, 0.0)


@given(scores, st.integers(2, 40))
def test_count_and_mean_are_those_of_the_values(values: list[float], num_points: int) -> None:
    seen = histogram(values, num_points)
    assert seen.count == len(values)
    assert seen.mean == pytest.approx(sum(values) / len(values) if values else 0.0, abs=1e-12)


@given(scores, scores, st.integers(2, 40))
def test_merging_is_concatenating(first: list[float], second: list[float], num_points: int) -> None:
    merged, whole = histogram(first, num_points) + histogram(second, num_points), histogram(first + second, num_points)
    assert merged.count == whole.count
    assert merged.weights == pytest.approx(whole.weights, abs=1e-9)


@given(scores, st.integers(2, 40), st.floats(-0.9, 0.9), st.floats(0.0, 1.0))
def test_wealth_on_the_points_is_at_most_that_of_the_values(
    values: list[float], num_points: int, stake: float, mean: float
) -> None:
    on_points = sum(
        w * math.log(1.0 + stake * (i / (num_points - 1) - mean))
        for i, w in enumerate(histogram(values, num_points).weights)
    )
    assert on_points <= sum(math.log(1.0 + stake * (x - mean)) for x in values) + 1e-9


def history(values: list[float]) -> Histogram:
    return reduce(Histogram.observe, values, Histogram())


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=50), st.sampled_from([0.05, 0.5, 0.95, 1.0]))
def test_a_quantile_is_at_most_a_bin_above_the_exact_one(values: list[float], level: float) -> None:
    exact = sorted(values)[max(0, -int(-level * len(values) // 1) - 1)]
    assert exact / (1 + 1e-9) <= history(values).quantile(level) <= exact * WIDTH * (1 + 1e-9)


@given(st.lists(st.floats(0.0, 1e6), max_size=20), st.lists(st.floats(0.0, 1e6), max_size=20))
def test_merging_histograms_by_size_is_concatenating(first: list[float], second: list[float]) -> None:
    merged, whole = history(first) + history(second), history(first + second)
    assert (merged.counts, merged.count) == (whole.counts, whole.count)
    assert merged.total == pytest.approx(whole.total)


def test_an_empty_histogram_has_no_bounds() -> None:
    assert Histogram().quantile(0.95) == Histogram().mean == 0.0
    assert Histogram().bounds(0.95, 0.05) == (0.0, float("inf"))


def test_bounds_hold_at_all_looks_with_their_probability() -> None:
    """Lognormal values, looked at 15 times: the 90th percentile leaves its bounds in at most 20 % of streams."""
    exact = NormalDist(0.0, 0.5).inv_cdf(0.9)
    rng = random.Random(11)
    missed = 0
    for _ in range(150):
        seen, left = Histogram(), False
        for i in range(1, 151):
            seen = seen.observe(2.718281828459045 ** rng.gauss(0.0, 0.5))
            if i % 10 == 0:
                lower, upper = seen.bounds(0.9, 0.2)
                left |= not lower <= 2.718281828459045**exact <= upper * WIDTH
        missed += left
    assert missed <= 30


def test_bounds_close_in_on_the_quantile() -> None:
    rng = random.Random(5)
    seen = history([rng.uniform(1.0, 2.0) for _ in range(3000)])
    lower, upper = seen.bounds(0.5, 0.05)
    assert 1.4 < lower < 1.5 < upper < 1.6


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
