"""What the drift watch says of simulated traffic: nothing of what is steady, the right thing in time of what is not."""

from collections import Counter

import pytest

from tests.simulation.drift_traffic import CHANGE_S, Traffic, falling, steady, watch


@pytest.mark.parametrize(("num_running", "mean"), [(1, 0.5), (4, 0.3), (4, 0.8)])
def test_steady_traffic_raises_no_alarm(num_running: int, mean: float) -> None:
    hours = 1.5
    alarms = Counter[str]()
    for seed in range(2):
        alarms += Counter(a.kind for a in watch(Traffic(seed, num_running, steady(mean)), 3600.0 * hours).alarms)
    assert not alarms, "benchmarks/drift_alarms.py states rates over days"


@pytest.mark.parametrize("seed", range(3))
def test_a_fall_by_15_points_is_drift_within_minutes(seed: int) -> None:
    watched = watch(Traffic(seed, 4, falling(0.6, 0.45)), CHANGE_S + 600.0)
    assert [alarm.kind for alarm in watched.alarms] == ["drift"]
    assert 0.0 < (watched.delay_s("drift") or 0.0) < 400.0
    [alarm] = watched.alarms
    assert alarm.before == pytest.approx(0.6, abs=0.05)
    assert alarm.after == pytest.approx(0.45, abs=0.06)


def test_a_rise_is_no_alarm() -> None:
    assert watch(Traffic(0, 4, falling(0.45, 0.7)), CHANGE_S + 1200.0).alarms == []


@pytest.mark.parametrize("num_running", [1, 4, 16])
def test_corruption_is_a_cliff_within_seconds_and_no_drift(num_running: int) -> None:
    broken = Traffic(1, num_running, steady(0.7), corrupted=lambda now: now >= CHANGE_S)
    watched = watch(broken, CHANGE_S + 300.0)
    assert [alarm.kind for alarm in watched.alarms] == ["cliff"]
    assert (watched.delay_s("cliff") or 99.0) < 20.0


def test_a_cliff_that_ends_recovers_and_drift_is_watched_on() -> None:
    gone = Traffic(2, 4, falling(0.7, 0.4), corrupted=lambda now: CHANGE_S - 300.0 <= now < CHANGE_S - 200.0)
    watched = watch(gone, CHANGE_S + 900.0)
    assert [alarm.kind for alarm in watched.alarms] == ["cliff", "recovered", "drift"]


def test_estimates_that_no_longer_fit_are_a_divergence() -> None:
    stale = Traffic(3, 4, falling(0.8, 0.45), predicted=0.8)
    watched = watch(stale, CHANGE_S + 300.0)
    assert watched.alarms[0].kind == "divergence"
    assert (watched.delay_s("divergence") or 999.0) < 120.0
