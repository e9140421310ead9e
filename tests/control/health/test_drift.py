"""Drift's streams: what they belong to, what they keep over versions and restarts, and the window of cliffs."""

from collections.abc import Sequence

import pytest

from prolepsis.control.health.drift import DriftAlarm, DriftSettings, DriftStreams, StreamState, _RecentShare
from prolepsis.control.health.reliability import Reliability
from prolepsis.core.stats import JudgedDraft, TrafficClassCounts

SETTINGS = DriftSettings(cliff_judged=20, cliff_s=1.0)
HEAD = ("draft_head", "s")
HALF = [JudgedDraft(True, 0.5), JudgedDraft(False, 0.5)]
WRONG = [JudgedDraft(False, 0.5)] * 2


def counts(judged: int, right: int, proposer: str = "draft_head") -> TrafficClassCounts:
    return TrafficClassCounts(proposer, "s", num_judged=judged, num_right=right)


class Streams(DriftStreams):
    """Streams of a version that a test sets."""

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
    """Put another version in use."""
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


def test_few_requests_of_a_version_are_not_a_cliff() -> None:
    streams = learned("head@1 fp")
    exchanged(streams)
    assert requests(streams, DriftSettings().cliff_requests - 1, WRONG, version="damaged@9 fp") == []


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


def test_the_level_of_another_target_says_nothing() -> None:
    streams = learned("head@1 fp")
    exchanged(streams, "other@1 another")
    assert requests(streams, 300, WRONG, version="other@1 another") == []


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
