"""The exact interval of a share: it holds what all members show, in at least 95 of 100 draws."""

import random

import pytest

from prolepsis.control.statistics.finite import share_interval


@pytest.mark.parametrize("num_right", [0, 3, 57, 190, 199, 200])
@pytest.mark.parametrize("num_drawn", [1, 20, 60])
def test_the_interval_holds_the_true_share(num_right: int, num_drawn: int) -> None:
    draw = random.Random(num_right * 1000 + num_drawn)
    members = [True] * num_right + [False] * (200 - num_right)
    found = dict.fromkeys(range(num_drawn + 1), (0.0, 0.0))
    found = {
        right: share_interval(200, num_drawn, right)
        for right in found
        if right <= num_right and num_drawn - right <= 200 - num_right
    }
    held = 0
    for _ in range(400):
        low, high = found[sum(draw.sample(members, num_drawn))]
        held += low <= num_right / 200 <= high
    assert held >= 380


def test_what_is_known_bounds_the_interval() -> None:
    assert share_interval(10, 10, 7) == (0.7, 0.7)
    assert share_interval(10, 0, 0) == (0.0, 1.0)
    assert share_interval(0, 0, 0) == (0.0, 1.0)
    low, high = share_interval(200, 20, 20)
    assert (0.8 < low < 0.9, high) == (True, 1.0)
    assert share_interval(200, 20, 0) == pytest.approx((0.0, 1 - low))
    large, _ = share_interval(50_000, 5_000, 4_750)
    assert 0.94 < large < 0.95
