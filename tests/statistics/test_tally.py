"""Tallies keep counts and means, merge like streams, and never promise more wealth than the values have."""

import math
from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prolepsis.statistics.arms import Tally

scores = st.lists(st.floats(0.0, 1.0), max_size=30)


def tally(values: list[float], num_knots: int) -> Tally:
    return reduce(Tally.observe, values, Tally.empty(num_knots))


def test_zeros_and_ones_are_kept_exactly() -> None:
    assert tally([0.0, 1.0, 1.0], 2).weights == (1.0, 2.0)


def test_a_value_is_split_between_its_neighbours_by_its_distance() -> None:
    assert Tally.empty(5).observe(0.3125).weights == (0.0, 0.75, 0.25, 0.0, 0.0)


@given(scores, st.integers(2, 40))
def test_count_and_mean_are_those_of_the_values(values: list[float], num_knots: int) -> None:
    seen = tally(values, num_knots)
    assert seen.count == len(values)
    assert seen.mean == pytest.approx(sum(values) / len(values) if values else 0.0, abs=1e-12)


@given(scores, scores, st.integers(2, 40))
def test_merging_is_concatenating(first: list[float], second: list[float], num_knots: int) -> None:
    merged, whole = tally(first, num_knots) + tally(second, num_knots), tally(first + second, num_knots)
    assert merged.count == whole.count
    assert merged.weights == pytest.approx(whole.weights, abs=1e-9)


@given(scores, st.integers(2, 40), st.floats(-0.9, 0.9), st.floats(0.0, 1.0))
def test_wealth_on_the_knots_is_at_most_that_of_the_values(
    values: list[float], num_knots: int, stake: float, mean: float
) -> None:
    on_knots = sum(
        w * math.log(1.0 + stake * (i / (num_knots - 1) - mean)) for i, w in enumerate(tally(values, num_knots).weights)
    )
    assert on_knots <= sum(math.log(1.0 + stake * (x - mean)) for x in values) + 1e-9
