"""Intervals of what speculation would bring: they cover the truth as often as they say, with requests that differ."""

import random

import pytest

from prolepsis.control.rollout.shadow import ShadowEvidence, TrafficClassEvidence
from prolepsis.core.stats import ProposerCounts, RequestStats
from prolepsis.core.traffic_sums import LEAST_REQUESTS, RatioSums


def request(tokens: int, **proposers: ProposerCounts) -> RequestStats:
    return RequestStats(num_output_tokens=tokens, shadow=proposers)


def test_speedup_is_time_without_over_time_with() -> None:
    one = TrafficClassEvidence()
    one.add(request(100, head=ProposerCounts(20, 60, 40, drafting=5.0, verifying=10.0)))
    assert one.speedup is not None
    assert one.speedup.estimate == pytest.approx(100 / (100 - 40 + 15))
    assert one.speedup.lower is None, "one request says nothing of others"
    assert one.drafting.interval is not None
    assert one.drafting.interval.estimate == pytest.approx(0.05)


def test_requests_without_a_draft_count() -> None:
    one = TrafficClassEvidence()
    one.add(request(100))
    one.add(request(100, head=ProposerCounts(20, 60, 50)))
    one.add(request(200))
    assert one.speedup is not None
    assert one.speedup.estimate == pytest.approx(400 / 350)
    head = one.proposers["head"]
    assert head.saved.interval is not None
    assert head.saved.interval.estimate == pytest.approx(50 / 400), "over all requests, those before its first too"
    assert head.saved == RatioSums(3, 50.0, 400.0, 2500.0, 5000.0, 60000.0)
    assert head.accepted.number == 1


def test_intervals_cover_what_they_say() -> None:
    chance = random.Random(5)
    covered = 0
    for _ in range(400):
        sums = RatioSums()
        for _ in range(60):
            drafted = 1 + int(chance.expovariate(1 / 80))
            rate = chance.betavariate(3, 2)
            sums.add(sum(chance.random() < rate for _ in range(drafted)), drafted)
        found = sums.interval
        assert found is not None
        assert found.lower is not None
        assert found.upper is not None
        covered += found.lower <= 0.6 <= found.upper
    assert 0.91 <= covered / 400 <= 0.98


def test_rules_of_the_policy_have_evidence_of_their_own() -> None:
    evidence = ShadowEvidence()
    drafted, useless = request(100, head=ProposerCounts(20, 60, 40)), request(100)
    for length in ("short", "long"):
        evidence.add(f"completions/standard/free/{length}/edits", drafted, "1")
        evidence.add(f"completions/standard/free/{length}/chat", useless, "1")
    evidence.add("completions/standard/free/short", useless, "1")
    assert len(evidence.traffic_classes) == 5
    speedups = {rule: one.speedup.estimate for rule, one in evidence.rules.items() if one.speedup is not None}
    assert speedups == {"edits": pytest.approx(100 / 60), "chat": 1.0, "default": 1.0}
    evidence.add("completions/standard/free/short", useless, "2")
    assert list(evidence.rules) == ["default"]


def test_another_version_begins_again() -> None:
    evidence = ShadowEvidence()
    for version in ("1", "1", "2"):
        evidence.add("s", request(10, head=ProposerCounts(1, 2, 1)), version)
    assert (evidence.version, evidence.traffic_classes["s"].saved.number) == ("2", 1)


def test_an_interval_needs_some_requests() -> None:
    sums = RatioSums()
    for i in range(LEAST_REQUESTS):
        assert i == 0 or (sums.interval is not None and sums.interval.lower is None)
        sums.add(i % 2, 1.0)
    assert sums.interval is not None
    assert sums.interval.lower is not None
