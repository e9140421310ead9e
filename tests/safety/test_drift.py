"""Streams begin anew with another version, with counts that fell, and by hand; their size is bounded."""

from prolepsis.core.stats import TrafficClassCounts
from prolepsis.safety.drift import DriftSettings, DriftStreams, _RecentShare

SETTINGS = DriftSettings(bin_judged=10, bin_s=1.0, cliff_judged=20, cliff_s=1.0)


def counts(judged: int, right: int, proposer: str = "draft_head") -> TrafficClassCounts:
    return TrafficClassCounts(proposer, "s", num_judged=judged, num_right=right)


def fed(streams: DriftStreams, version: str = "1", until: int = 20) -> None:
    for i in range(until):
        assert streams.observe([counts(20 * i, 12 * i)], lambda _: version, 2.0 * i) == []


def test_a_new_version_begins_anew() -> None:
    streams = DriftStreams(SETTINGS)
    fed(streams)
    assert streams.all["draft_head", "s"].status == "steady"
    assert streams.observe([counts(500, 240)], lambda _: "2", 50.0) == []  # nothing right since, and no cliff
    stream = streams.all["draft_head", "s"]
    assert (stream.status, stream.version, stream.num_judged, stream.since) == ("learning", "2", 0, 50.0)


def test_the_same_without_a_new_version_is_a_cliff() -> None:
    streams = DriftStreams(SETTINGS)
    fed(streams)
    [alarm] = streams.observe([counts(500, 228)], lambda _: "1", 50.0)
    assert (alarm.kind, alarm.proposer, alarm.version, alarm.after) == ("cliff", "draft_head", "1", 0.0)
    assert streams.observe([counts(600, 228)], lambda _: "1", 60.0) == [], "it is said once"


def test_counts_that_fell_are_another_proposers() -> None:
    streams = DriftStreams(SETTINGS)
    fed(streams)
    assert streams.observe([counts(5, 0)], lambda _: "1", 50.0) == []
    assert streams.all["draft_head", "s"].acceptance is None


def test_by_hand() -> None:
    streams = DriftStreams(SETTINGS)
    fed(streams)
    fresh = streams.reset(("draft_head", "s"), 70.0)
    assert (fresh.status, fresh.num_judged) == ("learning", 0)
    assert streams.all["draft_head", "s"] is fresh


def test_each_pair_has_its_own() -> None:
    streams = DriftStreams(SETTINGS)
    for i in range(20):
        streams.observe([counts(20 * i, 12 * i), counts(20 * i, 2 * i, "suffix")], lambda name: name, 2.0 * i)
    shown = {proposer: stream.acceptance for (proposer, _), stream in streams.all.items()}
    assert shown["draft_head"] is not None
    assert abs(shown["draft_head"] - 0.6) < 1e-9
    assert shown["suffix"] is not None
    assert abs(shown["suffix"] - 0.1) < 1e-9


def test_the_window_of_cliffs_is_as_short_as_it_may_be_and_bounded() -> None:
    recent = _RecentShare(20, 3.0)
    for i in range(1, 500):
        recent.add(counts(i, min(i, 100)), 0.2 * i)
    assert recent.value == 0.0
    assert len(recent._readings) <= 21
    few = _RecentShare(20, 3.0)
    few.add(counts(0, 0), 0.0)
    few.add(counts(1000, 900), 1.0)
    assert few.value is None, "not for long enough"
