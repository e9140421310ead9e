"""What the drift watch says of simulated traffic: nothing of what is steady, the right thing in time of what is not."""

from functools import partial

import numpy as np
import pytest

from prolepsis.control.health.drift import DriftSettings
from prolepsis.control.statistics.change import MeanWatch
from prolepsis.engine.drafting.acceptance import FIRST_JUDGED
from tests.simulation.drift_traffic import CHANGE_S, Traffic, falling, falls_seen, scores, steady, watch


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
