"""Counts of speculation, from those of ended requests."""

import pytest

from prolepsis.core.figures import RequestDone
from prolepsis.core.stats import DeviceSeconds, EffectiveMode, ProposerCounts, RequestStats, count_draft
from prolepsis.core.telemetry.metrics import Metrics


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"prolepsis_{name}", labels)


def drafted() -> RequestStats:
    """Two drafts of `suffix`, 3 tokens with 2 accepted, and 2 with none."""
    counts = ProposerCounts()
    counts.record(3, 2)
    counts.record(2, 0)
    return RequestStats(
        num_output_tokens=6,
        num_steps=4,
        proposers={"suffix": counts},
        plain_steps={"no_draft": 3, "too_costly": 1},
        mode=EffectiveMode("on", "speculating", 1),
        device=DeviceSeconds(plain=1.0, verify=0.3, propose=0.2),
        traffic_class="completions/standard/free/short",
    )


def test_acceptance_is_counted_by_proposer_and_traffic_class() -> None:
    metrics, plain = Metrics(), RequestStats(num_output_tokens=2, num_steps=2)
    for stats in (drafted(), drafted(), plain):
        metrics.observe(RequestDone(stats))
    by = {"proposer": "suffix", "traffic_class": "completions/standard/free/short"}
    counts = {"drafts": 4, "draft_tokens": 10, "accepted_tokens": 4, "first_token_failures": 2}
    assert {name: value(metrics, f"spec_decode_num_{name}_total", **by) for name in counts} == counts


def test_positions_are_counted_as_drafted_and_as_accepted() -> None:
    metrics = Metrics()
    metrics.observe(RequestDone(drafted()))
    for name, expected in (("draft", [2, 2, 1]), ("accepted", [1, 1, 0])):
        series = f"spec_decode_num_{name}_tokens_per_pos_total"
        assert [value(metrics, series, proposer="suffix", position=str(at)) for at in range(3)] == expected


def test_depths_are_those_of_whole_drafts_also_where_several_proposers_made_one() -> None:
    metrics, stats = Metrics(), drafted()
    count_draft(stats.proposers, ("suffix", "draft_head", "draft_head", "draft_head"), 3)
    metrics.observe(RequestDone(stats))
    buckets = ("1.0", "2.0", "3.0", "4.0", "5.0", "+Inf")
    assert [value(metrics, "spec_decode_draft_depth_tokens_bucket", le=le) for le in buckets] == [0, 1, 2, 3, 3, 3]
    assert value(metrics, "spec_decode_draft_depth_tokens_sum") == 3 + 2 + 4
    accepted = [value(metrics, "spec_decode_accepted_depth_tokens_bucket", le=le) for le in ("0.0", *buckets)]
    assert accepted == [1, 1, 2, 3, 3, 3, 3]


def test_passes_and_tokens_of_a_pass_are_counted_by_mode() -> None:
    metrics = Metrics()
    metrics.observe(RequestDone(drafted()))
    assert value(metrics, "request_target_passes_sum", mode="on") == 4
    assert value(metrics, "request_tokens_per_pass_sum", mode="on") == 1.5


def test_corrections_cost_the_rejected_share_of_what_drafts_took() -> None:
    metrics = Metrics()
    metrics.observe(RequestDone(drafted()))
    by = {"traffic_class": "completions/standard/free/short"}
    assert value(metrics, "spec_decode_seconds_total", **by) == pytest.approx(0.5)
    assert value(metrics, "spec_decode_correction_seconds_total", **by) == pytest.approx(0.5 * 3 / 5)


def test_plain_steps_are_counted_by_reason() -> None:
    metrics = Metrics()
    metrics.observe(RequestDone(drafted()))
    series = "spec_decode_num_plain_steps_total"
    assert [value(metrics, series, reason=reason) for reason in ("no_draft", "too_costly")] == [3, 1]


def test_drafts_in_shadow_are_counted_apart() -> None:
    metrics, stats = Metrics(), drafted()
    stats.proposers, stats.shadow = {}, stats.proposers
    metrics.observe(RequestDone(stats))
    for name, count in (("drafts", 2), ("drafted_tokens", 5), ("accepted_tokens", 2)):
        assert value(metrics, f"shadow_{name}_total", proposer="suffix") == count
    assert "prolepsis_spec_decode_num_drafts_total{" not in metrics.exposition().decode()
