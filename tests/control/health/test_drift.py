"""Drift's streams: what they belong to, what they keep over versions and restarts, and the window of cliffs."""

from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest

from prolepsis.control.health.drift import DriftAlarm, DriftSettings, DriftStreams, StreamState, _RecentShare
from prolepsis.control.health.reliability import Reliability
from prolepsis.control.statistics.change import MeanWatch
from prolepsis.core.stats import JudgedDraft, TrafficClassCounts
from prolepsis.engine.drafting.acceptance import FIRST_JUDGED
from tests.simulation.drift_traffic import CHANGE_S, Traffic, falling, falls_seen, scores, steady, watch

SETTINGS = DriftSettings(cliff_judged=20, cliff_s=1.0)
HEAD = ("draft_head", "s")
HALF = [JudgedDraft(True, 0.5), JudgedDraft(False, 0.5)]
WRONG = [JudgedDraft(False, 0.5)] * 2


def counts(judged: int, right: int, proposer: str = "draft_head") -> TrafficClassCounts:
    return TrafficClassCounts(proposer, "s", num_judged=judged, num_right=right)


class Streams(DriftStreams):
    def __init__(self, version: str = "1") -> None:
        super().__init__(lambda _: self.version, SETTINGS)
        self.version = version

    def see_counts(self, reading: TrafficClassCounts, version: str, now: float) -> list[DriftAlarm]:
        self.version = version
        return self.observe([reading], now)


def requests(
    streams: Streams, number: int, judged: Sequence[JudgedDraft] = HALF, version: str = "1"
) -> list[DriftAlarm]:
    streams.version = version
    return [alarm for _ in range(number) for alarm in streams.judge(HEAD, judged, 0.0)]


def learned(version: str = "1") -> Streams:
    streams = Streams(version)
    streams.observe([counts(0, 0)], 0.0)
    assert requests(streams, 300, version=version) == []
    assert streams.all[HEAD].status == "steady"
    return streams


def test_a_fall_is_reported_once_and_the_new_level_is_learned() -> None:
    streams = learned()
    few = [JudgedDraft(True, 0.5), *[JudgedDraft(False, 0.5)] * 4]
    alarms = requests(streams, 300, few)
    assert {alarm.kind for alarm in alarms} == {"drift", "divergence"}
    assert len(alarms) == 2
    stream = streams.all[HEAD]
    assert stream.status == "drifted"
    assert stream.acceptance == pytest.approx(0.2, abs=0.02)


def test_a_fall_to_nothing_is_a_cliff_and_the_counts_show_its_end() -> None:
    streams = learned()
    [cliff] = [alarm for alarm in requests(streams, 30, WRONG) if alarm.kind == "cliff"]
    assert (cliff.version, cliff.after) == ("1", 0.0)
    assert cliff.before == pytest.approx(0.5, abs=0.05)
    assert streams.all[HEAD].status == "cliff"
    assert requests(streams, 500, WRONG) == [], "it is said once"
    [recovered] = streams.see_counts(counts(30, 12), "1", 10.0)
    assert recovered.kind == "recovered"
    assert recovered.before == pytest.approx(0.5, abs=0.05)


def test_the_counts_show_a_cliff_of_requests_that_have_not_ended() -> None:
    streams = learned()
    [alarm] = streams.see_counts(counts(40, 0), "1", 5.0)
    assert alarm.kind == "cliff"
    assert alarm.before == pytest.approx(0.5)


def test_a_baseline_belongs_to_its_version_and_is_there_again_with_it() -> None:
    streams = learned()
    assert requests(streams, 100, HALF, version="2") == []
    assert (streams.all[HEAD].version, streams.all[HEAD].status) == ("2", "learning")
    assert {alarm.kind for alarm in requests(streams, 30, WRONG)} == {"cliff"}, "the first one has its own"


def exchanged(streams: Streams, version: str = "damaged@9 fp") -> None:
    streams.see_counts(counts(1000, 500), version, 100.0)


def test_a_version_that_begins_at_nothing_is_a_cliff_of_its_traffic_class_by_its_first_requests() -> None:
    streams = learned("head@1 fp")
    exchanged(streams)
    [cliff] = requests(streams, 199, WRONG, version="damaged@9 fp")
    assert (cliff.kind, cliff.version, cliff.after) == ("cliff", "damaged@9 fp", 0.0)
    assert cliff.before == pytest.approx(0.5)
    assert streams.all[HEAD].status == "cliff"
    assert streams.all[HEAD].recent_acceptance == 0.0, "what it fell to is known before the next window"
    streams.see_counts(counts(1300, 550), "damaged@9 fp", 130.0)
    assert streams.all[HEAD].recent_acceptance == pytest.approx(50 / 300)


@pytest.mark.parametrize(
    ("version", "number"), [("damaged@9 fp", DriftSettings().cliff_requests - 1), ("other@1 another", 300)]
)
def test_few_requests_and_the_level_of_another_target_show_no_cliff(version: str, number: int) -> None:
    streams = learned("head@1 fp")
    exchanged(streams, version)
    assert requests(streams, number, WRONG, version=version) == []


def test_a_version_that_begins_at_nothing_is_a_cliff_by_the_counts_too() -> None:
    streams = learned("head@1 fp")
    exchanged(streams)
    [cliff] = streams.see_counts(counts(1040, 500), "damaged@9 fp", 105.0)
    assert (cliff.kind, cliff.version) == ("cliff", "damaged@9 fp")
    assert cliff.before == pytest.approx(0.5)
    assert streams.see_counts(counts(1080, 500), "damaged@9 fp", 110.0) == [], "it is told once"
    [recovered] = streams.see_counts(counts(1110, 515), "damaged@9 fp", 115.0)
    assert recovered.kind == "recovered"


def test_the_sound_version_is_steady_as_soon_as_it_is_back() -> None:
    streams = learned("head@1 fp")
    exchanged(streams)
    requests(streams, 100, WRONG, version="damaged@9 fp")
    exchanged(streams, "head@1 fp")
    assert streams.all[HEAD].status == "steady"
    assert streams.all[HEAD].acceptance == pytest.approx(0.5)
    exchanged(streams, "damaged@9 fp")
    assert [alarm.kind for alarm in requests(streams, 100, WRONG, version="damaged@9 fp")] == ["cliff"]


def test_a_version_that_is_merely_worse_raises_no_alarm_and_gets_its_own_baseline() -> None:
    streams, few = learned("head@1 fp"), [JudgedDraft(True, 0.5), *[JudgedDraft(False, 0.5)] * 4]
    exchanged(streams)
    assert requests(streams, 300, few, version="damaged@9 fp") == []
    assert streams.all[HEAD].status == "steady"
    assert streams.all[HEAD].acceptance == pytest.approx(0.2)


def test_a_level_goes_through_versions_that_nothing_is_known_of() -> None:
    streams = learned("head@1 fp")
    exchanged(streams, "head@2 fp")
    exchanged(streams, "none fp")
    exchanged(streams)
    assert [alarm.kind for alarm in requests(streams, 60, WRONG, version="damaged@9 fp")] == ["cliff"]


@pytest.mark.parametrize("read_late", [False, True])
def test_a_start_with_another_version_is_held_against_the_last_one_before_it(read_late: bool) -> None:
    before, after = learned("head@1 fp"), Streams()
    kept = {place: StreamState.from_json(state.to_json()) for place, state in before.states().items()}
    if read_late:
        requests(after, 3, WRONG, version="damaged@9 fp")
    after.restore(kept, 0.0)
    assert [alarm.kind for alarm in requests(after, 60, WRONG, version="damaged@9 fp")] == ["cliff"]


def test_an_operator_accepts_the_level_of_a_version() -> None:
    streams = learned("head@1 fp")
    exchanged(streams)
    requests(streams, 60, WRONG, version="damaged@9 fp")
    streams.reset(HEAD, 200.0)
    assert requests(streams, 300, WRONG, version="damaged@9 fp") == []
    assert streams.all[HEAD].status == "steady"


def test_counts_that_fell_begin_again_and_the_baseline_stays() -> None:
    streams = learned()
    assert streams.see_counts(counts(500, 250), "1", 50.0) == []
    assert streams.see_counts(counts(5, 0), "1", 60.0) == []
    assert streams.all[HEAD].num_judged == 0
    assert streams.all[HEAD].acceptance == pytest.approx(0.5)


def test_a_restart_goes_on_with_what_was_learned() -> None:
    before = learned()
    kept = {place: StreamState.from_json(state.to_json()) for place, state in before.states().items()}
    after = Streams()
    requests(after, 3)  # before the store was read
    after.restore(kept, 0.0)
    assert after.all[HEAD].status == "steady"
    assert {alarm.kind for alarm in requests(after, 30, WRONG)} == {"cliff"}
    busy = learned()
    busy.restore({(HEAD, "1"): Streams()._stream(counts(0, 0), 0.0).state}, 0.0)
    assert busy.all[HEAD].status == "steady", "less is known in the store"


def test_a_restart_after_a_fall_still_knows_the_level_to_tell_a_cliff_from() -> None:
    before, worse = learned(), [JudgedDraft(True, 0.5), *[JudgedDraft(False, 0.5)] * 2]
    assert any(requests(before, 1, worse) for _ in range(1000))
    level = before.all[HEAD].acceptance
    assert level is not None
    after = Streams()
    after.see_counts(counts(0, 0), "1", 0.0)
    after.restore({place: StreamState.from_json(state.to_json()) for place, state in before.states().items()}, 0.0)
    assert (after.all[HEAD].status, after.all[HEAD].acceptance) == ("drifted", level)
    [alarm] = after.see_counts(counts(40, 0), "1", 5.0)
    assert alarm.kind == "cliff"


def test_by_hand() -> None:
    streams = learned()
    fresh = streams.reset(HEAD, 70.0)
    assert (fresh.status, fresh.num_judged, fresh.acceptance) == ("learning", 0, None)
    assert streams.all[HEAD] is fresh


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


@pytest.mark.parametrize(("rate", "distance"), [(0.8, 0.0), (0.4, 0.4), (1.0, 0.2)])
def test_the_distance_is_that_of_estimates_and_outcomes(rate: float, distance: float) -> None:
    reliability = Reliability()
    for i in range(500):
        assert i >= 50 or reliability.total_variation is None
        reliability.add(0.8, right=i % 5 < 5 * rate)
    assert reliability.total_variation == pytest.approx(distance, abs=0.01)
    assert Reliability(reliability.bins).total_variation == reliability.total_variation


def test_over_and_underestimates_do_not_cancel() -> None:
    reliability = Reliability()
    for i in range(400):
        reliability.add(0.85, right=i % 4 > 0)
        reliability.add(0.15, right=i % 4 == 0)
    assert reliability.total_variation == pytest.approx(0.1, abs=0.01)


@pytest.mark.parametrize(("num_running", "mean"), [(1, 0.5), (4, 0.3), (4, 0.8)])
def test_steady_traffic_raises_no_alarm(num_running: int, mean: float) -> None:
    alarms = watch(Traffic(0, num_running, steady(mean)), 3600.0).alarms
    assert not alarms, "benchmarks/drift_alarms.py states rates over days"


@pytest.mark.parametrize("seed", range(3))
def test_a_fall_by_15_points_is_drift_within_minutes(seed: int) -> None:
    watched = watch(Traffic(seed, 4, falling(0.6, 0.45)), CHANGE_S + 600.0)
    assert [alarm.kind for alarm in watched.alarms] == ["drift"]
    assert 0.0 < (watched.delay_s("drift") or 0.0) < 400.0
    [alarm] = watched.alarms
    assert alarm.before == pytest.approx(0.6, abs=0.05)
    assert alarm.after < 0.55


@pytest.mark.parametrize("mean", [0.4, 0.6, 0.8])
def test_a_fall_by_half_is_detected_within_500_judged_drafts(mean: float) -> None:
    told = dict(falls_seen(mean, mean / 2.0, streams=40, requests=1600, change=1200, seed=7))
    counted = sorted(FIRST_JUDGED * (request - 1199) for request in told.values())
    assert len(counted) == 40
    assert counted[0] > 0
    assert counted[20] <= 500


def test_the_simulation_of_many_streams_is_the_watch_itself() -> None:
    rng = np.random.default_rng(3)
    means = partial(np.where, np.arange(2000) >= 1500, 0.2)
    watch, told = MeanWatch(DriftSettings().tolerance), list[int]()
    for i, score in enumerate(scores(rng, lambda _: means(0.5), 1, 2000)):
        change = watch.see(float(score[0]))
        if change is not None:
            told.append(i)
            watch.restart()
    assert falls_seen(0.5, 0.2, streams=1, requests=2000, change=1500, seed=3) == [(0, i) for i in told]
    assert len(told) == 1


def test_healthy_streams_raise_no_alarm_for_days() -> None:
    """Days of a few streams; `benchmarks/drift_alarms.py` states the rate over thirty."""
    assert falls_seen(0.5, None, streams=20, requests=20_000, change=0, seed=11) == []


def test_a_rise_is_not_an_alarm() -> None:
    assert watch(Traffic(0, 4, falling(0.45, 0.7)), CHANGE_S + 1200.0).alarms == []


@pytest.mark.parametrize("num_running", [1, 4, 16])
def test_corruption_is_a_cliff_within_seconds(num_running: int) -> None:
    broken = Traffic(1, num_running, steady(0.7), corrupted=lambda now: now >= CHANGE_S)
    watched = watch(broken, CHANGE_S + 300.0)
    assert [alarm.kind for alarm in watched.alarms].count("cliff") == 1
    assert "recovered" not in {alarm.kind for alarm in watched.alarms}
    assert (watched.delay_s("cliff") or 99.0) < 20.0


def test_a_cliff_that_ends_recovers_and_drift_is_watched_on() -> None:
    gone = Traffic(2, 4, falling(0.7, 0.4), corrupted=lambda now: CHANGE_S - 300.0 <= now < CHANGE_S - 200.0)
    watched = watch(gone, CHANGE_S + 900.0)
    assert [alarm.kind for alarm in watched.alarms] == ["cliff", "recovered", "drift"]


def test_estimates_that_no_longer_fit_are_a_divergence() -> None:
    stale = Traffic(3, 4, falling(0.8, 0.45), predicted=0.8)
    watched = watch(stale, CHANGE_S + 300.0)
    assert {alarm.kind for alarm in watched.alarms} == {"drift", "divergence"}, "harder text alone is drift alone"
    [divergence] = [alarm for alarm in watched.alarms if alarm.kind == "divergence"]
    assert 0.1 < (divergence.total_variation or 0.0) < 0.5
    assert (watched.delay_s("divergence") or 999.0) < 120.0
