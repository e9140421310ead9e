"""Sums of requests add field by field, and their ratios are those of the sums."""

from prolepsis.core.stats import DeviceSeconds, ProposerCounts, RequestStats
from prolepsis.core.traffic_sums import TrafficSums, sums_of


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
    )
    assert (total.acceptance_rate, total.saved) == (0.75, 0.25)
