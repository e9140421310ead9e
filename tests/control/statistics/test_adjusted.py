"""Bounds of a ratio with a covariate: they cover, sharpen with what is known, and forgive a wrong expectation."""

import math
import random

import pytest

from prolepsis.control.statistics.adjusted import FIRST_SPAN, AdjustedRatio, reach_after
from prolepsis.control.statistics.arms import Arm


def observed(ratio: float, number: int, *, share: float = 0.5, told: float = 1.0, seed: int = 0) -> AdjustedRatio:
    """Return requests of very different sizes; `told`: how much of a size the expectation knows, as an exponent."""
    draw, found = random.Random(seed), AdjustedRatio(share)
    for i in range(number):
        size, arm = draw.lognormvariate(0.0, 0.8), "canary" if draw.random() < share else "control"
        amount = size * draw.lognormvariate(0.0, 0.2) * (ratio if arm == "canary" else 1.0)
        found.observe(_arm(arm), amount, expected=1.4 * (size / 1.4) ** told, typical=1.4, reach=reach_after(i))
    return found


def _arm(name: str) -> Arm:
    return "canary" if name == "canary" else "control"


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
@pytest.mark.parametrize("ratio", [0.6, 1.0, 1.4])
def test_bounds_hold_the_ratio_and_close_in_on_it(ratio: float, share: float) -> None:
    few, many = (observed(ratio, number, share=share).bounds(0.025) for number in (300, 4000))
    found = observed(ratio, 300, share=share)
    assert [found.excludes(few[0] - 0.01, 0.025), found.excludes(ratio, 0.025)] == [few[0] > 0.0, False]
    assert found.excludes(few[1] + 0.01, 0.025)
    assert few[0] <= many[0] < ratio < many[1] <= few[1]
    assert many[1] - many[0] < 0.35


def test_what_is_known_of_a_request_sharpens_and_what_is_wrong_does_not_mislead() -> None:
    known, unknown = observed(0.7, 1000).bounds(0.025), observed(0.7, 1000, told=0.0).bounds(0.025)
    assert known[1] - known[0] < 0.6 * (unknown[1] - unknown[0])
    assert unknown[0] < 0.7 < unknown[1]


def test_without_a_control_the_amount_is_bounded_against_what_is_expected() -> None:
    draw, found = random.Random(0), AdjustedRatio(None)
    for i in range(600):
        found.observe("canary", draw.lognormvariate(0.0, 0.2) * 0.7, expected=1.0, typical=1.0, reach=reach_after(i))
    lower, upper = found.bounds(0.025)
    assert 0.6 < lower < 0.7 * math.exp(0.02) < upper < 0.8
    assert found.least_count == 600


def test_nothing_is_known_without_requests() -> None:
    assert AdjustedRatio(0.5).bounds(0.025) == (0.0, math.inf)
    assert AdjustedRatio(0.5).least_count == 0


def test_the_clip_grows_with_the_number_of_requests() -> None:
    ends = (0, FIRST_SPAN - 1, FIRST_SPAN, 8 * FIRST_SPAN - 1, 8 * FIRST_SPAN, 64 * FIRST_SPAN)
    found = [reach_after(number) for number in ends]
    assert found == [2.0, 2.0, 4.0, 4.0, 8.0, 16.0]


def test_no_request_of_any_size_breaks_a_bound() -> None:
    found = AdjustedRatio(0.5)
    for i in range(50):
        found.observe(_arm("canary" if i % 2 else "control"), 1e9 * (i % 3), expected=1e-3, typical=1e3, reach=2.0)
    lower, upper = found.bounds(0.025)
    assert 0.0 <= lower <= 1.0 <= upper
