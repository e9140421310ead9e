"""Requests share the time of their pool."""

import pytest

from prolepsis.adapters.upstream.pool import SharedTime
from tests.clock import Clock


def test_the_shares_add_up_to_the_time_with_requests() -> None:
    clock = Clock(5.0)
    time = SharedTime(clock)
    clock.now = 10.0  # nobody is charged for it
    first = time.enter()
    clock.now = 12.0
    second = time.enter()
    clock.now = 16.0
    first = time.leave() - first
    clock.now = 17.0
    second = time.leave() - second
    clock.now = 30.0
    assert (first, second) == pytest.approx((2.0 + 4.0 / 2, 4.0 / 2 + 1.0))
    assert time.num_requests == 0
    assert time.read() == pytest.approx(2.0 + 4.0 / 2 + 1.0)
