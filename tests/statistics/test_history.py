"""Quantiles from bins of 2 %, and their bounds at all times at once."""

import random
from functools import reduce
from statistics import NormalDist

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prolepsis.statistics.arms import WIDTH, History


def history(values: list[float]) -> History:
    return reduce(History.observe, values, History())


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=50), st.sampled_from([0.05, 0.5, 0.95, 1.0]))
def test_a_quantile_is_at_most_a_bin_above_the_exact_one(values: list[float], level: float) -> None:
    exact = sorted(values)[max(0, -int(-level * len(values) // 1) - 1)]
    assert exact / (1 + 1e-9) <= history(values).quantile(level) <= exact * WIDTH * (1 + 1e-9)


@given(st.lists(st.floats(0.0, 1e6), max_size=20), st.lists(st.floats(0.0, 1e6), max_size=20))
def test_merging_is_concatenating(first: list[float], second: list[float]) -> None:
    merged, whole = history(first) + history(second), history(first + second)
    assert (merged.counts, merged.count) == (whole.counts, whole.count)
    assert merged.total == pytest.approx(whole.total)


def test_nothing_is_known_of_nothing() -> None:
    assert History().quantile(0.95) == History().mean == 0.0
    assert History().bounds(0.95, 0.05) == (0.0, float("inf"))


def test_bounds_hold_at_all_looks_with_their_probability() -> None:
    """Lognormal values, looked at 15 times: the 90th percentile leaves its bounds in at most 20 % of streams."""
    exact = NormalDist(0.0, 0.5).inv_cdf(0.9)
    rng = random.Random(11)
    missed = 0
    for _ in range(150):
        seen, left = History(), False
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
