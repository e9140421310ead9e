"""Sums of requests add field by field, and their ratios are those of the sums."""

import pytest

from prolepsis.core.stats import DeviceSeconds, ProposerCounts, RequestStats
from prolepsis.core.traffic_sums import TrafficSums, sums_of, sums_of_device


def stats(num_accepted: int) -> RequestStats:
    return RequestStats(
        num_output_tokens=10,
        proposers={"suffix": ProposerCounts(num_drafts=2, num_draft_tokens=8, num_accepted=num_accepted)},
        device=DeviceSeconds(prefill=1.0, plain=2.0, predicted_plain=4.0),
    )


def test_ratios_are_taken_of_the_sums() -> None:
    total = TrafficSums()
    assert (total.acceptance_rate, total.saved) == (None, None)
    for num_accepted in (4, 8):
        total.add(sums_of(stats(num_accepted)))
    assert total == TrafficSums(
        num_requests=2,
        num_output_tokens=20,
        num_draft_tokens=16,
        num_accepted=12,
        device_s=6.0,
        predicted_plain_s=8.0,
        device_squares=18.0,
        predicted_squares=32.0,
        products=24.0,
    )
    assert (total.acceptance_rate, total.saved) == (0.75, 0.25)


def test_a_saving_has_bounds_from_twenty_requests_on() -> None:
    total = TrafficSums()
    for i in range(19):
        total.add(sums_of_device(DeviceSeconds(plain=3.0 if i % 2 else 2.0, predicted_plain=4.0)))
    assert total.saved_bounds is None
    total.add(sums_of_device(DeviceSeconds(plain=3.0, predicted_plain=4.0)))
    assert total.saved == 0.375
    assert total.saved_bounds == pytest.approx((0.375 - 0.0562, 0.375 + 0.0562), abs=1e-3)
