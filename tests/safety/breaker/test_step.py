"""A breaker by recorded counts and a clock set by hand."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prolepsis.core.plan import LeftOut
from prolepsis.core.stats import TrafficClassCounts
from prolepsis.safety.breaker import Breaker, BreakerEvent, BreakerSettings, ByHand
from tests.safety.breaker.feeds import SETTINGS, Watched, patient


def tripped() -> Watched:
    watched = Watched()
    [event] = watched.draft(200, 0.0)
    assert (event.before, event.after, event.reason) == ("closed", "open", "acceptance")
    return watched


def half_open() -> Watched:
    watched = tripped()
    watched.look(SETTINGS.open_s)
    assert watched.breaker.state == "half_open"
    return watched


def test_a_proposer_that_fares_well_is_let_be() -> None:
    watched = Watched()
    assert watched.draft(5000, 0.6) == []
    assert watched.breaker.left_out(SETTINGS.probes) is None


def test_it_opens_where_the_first_token_is_surely_wrong_and_says_by_which_numbers() -> None:
    watched = Watched()
    [event] = watched.draft(200, 0.0, cost=0.01, accepted=0.0)
    assert (event.reason, event.acceptance, event.open_s) == ("acceptance", 0.0, SETTINGS.open_s)
    assert SETTINGS.min_judged <= event.judged < 100, "soon, but not on little"
    assert (event.proposer, event.traffic_class) == ("suffix", "chat")
    assert BreakerEvent(**{f: getattr(event, f) for f in event.__slots__}) == event
    assert b'"reason":"acceptance"' in event.to_json()
    assert watched.breaker.left_out(SETTINGS.probes) == LeftOut("suffix", "chat")


def test_little_evidence_opens_nothing() -> None:
    watched = Watched()
    assert watched.draft(SETTINGS.min_judged - 4, 0.0) == []


def test_acceptance_near_the_threshold_opens_nothing() -> None:
    watched = Watched(settings=patient())
    assert watched.draft(3000, 0.1) == []


def test_what_was_good_long_ago_does_not_hide_what_is_bad_now() -> None:
    watched = Watched()
    watched.draft(5000, 0.8)
    before = watched.counts.num_judged
    [event] = watched.draft(2000, 0.0)
    assert event.reason == "acceptance"
    assert watched.counts.num_judged - before < 2000


@given(st.lists(st.integers(1, 50), min_size=1, max_size=60), st.integers(0, 10))
def test_how_often_it_is_asked_decides_nothing(sizes: list[int], unjudged: int) -> None:
    """Only what was judged counts, whatever else it was asked and however the readings fall."""
    watched, plain = Watched(settings=patient()), Watched(settings=patient())
    for size in sizes:
        for one in (watched, plain):
            one.add(size, 0)
        watched.counts = replace(watched.counts, num_asked=watched.counts.num_asked + unjudged * size)
        watched.look()
        plain.look()
    assert watched.breaker.state == plain.breaker.state
    assert (watched.breaker.state == "open") == any(event.reason == "acceptance" for event in watched.events)


def test_it_opens_where_drafts_cost_more_than_they_bring() -> None:
    watched = Watched()
    [event] = watched.draft(2000, 0.5, cost=1.5, accepted=0.6)
    assert event.reason == "cost"
    assert event.spent > SETTINGS.max_cost * event.gained
    assert event.rounds >= SETTINGS.min_rounds
    assert Watched().draft(2000, 0.5, cost=0.9, accepted=1.0) == []


def test_errors_and_late_calls_in_a_row_open_it() -> None:
    for reason, limit in (("errors", SETTINGS.errors_in_row), ("late", SETTINGS.late_in_row)):
        watched = Watched()
        watched.draft(20, 0.6)
        go_wrong = watched.fail if reason == "errors" else watched.lag
        go_wrong(limit - 1)
        assert watched.look() == []
        watched.add(1, 1)
        go_wrong(limit - 1)
        assert watched.look() == [], "a call that went well begins the row anew"
        go_wrong()
        [event] = watched.look()
        assert event.reason == reason


def test_it_is_probed_after_a_while_and_closes_where_it_has_recovered() -> None:
    watched = tripped()
    assert watched.look(SETTINGS.open_s - 0.1) == []
    [event] = watched.look(0.2)
    assert (event.after, event.reason) == ("half_open", "back_off_over")
    assert watched.breaker.left_out(7) == LeftOut("suffix", "chat", 7, probe_round=1)
    [event] = watched.draft(40, 0.5)
    assert (event.before, event.after, event.reason) == ("half_open", "closed", "recovered")
    assert watched.breaker.left_out(7) is None


def test_between_the_two_thresholds_it_stays_what_it_is() -> None:
    watched = Watched(settings=patient())
    assert watched.draft(1000, 0.1) == []
    watched = half_open()
    [event] = watched.draft(40, 0.1)
    assert (event.after, event.reason) == ("open", "acceptance")


def test_back_off_doubles_up_to_its_limit_and_begins_anew_after_a_calm_time() -> None:
    watched = tripped()
    waits = []
    for _ in range(9):
        waits.append(watched.breaker.open_s)
        watched.look(watched.breaker.open_s + 0.1)
        watched.draft(30, 0.0)
        assert watched.breaker.state == "open"
    assert waits == [10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 600.0, 600.0, 600.0]
    watched.look(600.1)
    watched.draft(30, 0.5)
    watched.draft(100, 0.0)
    assert (watched.breaker.state, watched.breaker.open_s) == ("open", 600.0), "too soon to be trusted again"
    watched.look(600.1)
    watched.draft(30, 0.5)
    watched.look(SETTINGS.calm_s)
    watched.draft(200, 0.0)
    assert (watched.breaker.state, watched.breaker.open_s) == ("open", 10.0)


def test_one_fault_ends_a_probe_round() -> None:
    for reason in ("errors", "late"):
        watched = half_open()
        if reason == "errors":
            watched.fail()
        else:
            watched.lag()
        [event] = watched.look()
        assert (event.after, event.reason, event.open_s) == ("open", reason, 20.0)


def test_faults_of_before_do_not_end_a_probe_round() -> None:
    watched = Watched()
    watched.fail(9)
    watched.look()
    watched.look(SETTINGS.open_s)
    assert watched.breaker.state == "half_open"
    assert watched.look() == []


def test_a_round_that_brings_too_little_to_judge_is_repeated_as_soon() -> None:
    watched = half_open()
    asked = watched.counts.num_asked + SETTINGS.probes
    watched.counts = replace(watched.counts, num_asked=asked)
    [event] = watched.look()
    assert (event.after, event.reason, event.open_s) == ("open", "no_evidence", SETTINGS.open_s)


def test_a_round_that_brings_nothing_waits() -> None:
    watched = half_open()
    assert watched.look(10_000.0) == []


@pytest.mark.parametrize("to", ["forced_open", "forced_closed"])
def test_what_is_set_by_hand_stays_whatever_is_counted(to: ByHand) -> None:
    watched = Watched()
    [event] = watched.set(to)
    assert (event.reason, event.by, event.after) == ("by_hand", "kim", to)
    assert watched.set(to) == []
    for acceptance in (0.0, 0.9):
        assert watched.draft(1000, acceptance) == []
    watched.fail(50)
    assert watched.look(10_000.0) == []
    assert (watched.breaker.left_out(1) is not None) == (to == "forced_open")
    watched.set("closed")
    assert watched.look() == [], "what it did meanwhile is not held against it"
    assert watched.draft(200, 0.0)[0].after == "open"


def test_one_that_only_measures_says_when_it_would_open() -> None:
    watched = Watched()
    watched.set("metrics_only")
    for _ in range(2):
        before = watched.counts.num_judged
        [event] = watched.draft(400, 0.0)
        assert (event.before, event.after, event.reason) == ("metrics_only", "metrics_only", "acceptance")
        assert watched.breaker.left_out(1) is None
        assert watched.counts.num_judged - before >= SETTINGS.min_judged, "not at every look"


def test_another_proposer_begins_anew() -> None:
    for watched in (tripped(), half_open()):
        watched.counts = TrafficClassCounts("suffix", "chat", num_asked=3)
        [event] = watched.look()
        assert (event.after, event.reason) == ("closed", "exchanged")
    watched = tripped()
    watched.set("forced_open")
    watched.counts = TrafficClassCounts("suffix", "chat", num_asked=3)
    assert watched.look() == []
    assert watched.breaker.state == "forced_open"


def test_a_clock_that_goes_back_lengthens_a_wait_once() -> None:
    watched = tripped()
    watched.look(-86_400.0)
    watched.look(SETTINGS.open_s)
    assert watched.breaker.state == "half_open"


readings = st.tuples(
    st.integers(0, 40), st.floats(0.0, 1.0), st.integers(0, 6), st.integers(0, 4), st.floats(0.0, 30.0), st.booleans()
)


@given(st.lists(readings, max_size=80))
def test_whatever_comes_states_follow_one_another_as_they_may(
    feed: list[tuple[int, float, int, int, float, bool]],
) -> None:
    watched = Watched(settings=BreakerSettings(probes=30))
    for judged, share, errors, late, seconds, restarted in feed:
        if restarted and judged > 35:
            watched.counts = TrafficClassCounts("suffix", "chat")
        watched.add(judged, round(judged * share), cost=judged * 0.5, accepted=judged * share)
        watched.fail(errors)
        watched.lag(late)
        watched.look(seconds)
        out = watched.breaker.left_out(30)
        assert (out is None) == (watched.breaker.state == "closed")
        assert watched.breaker.open_s <= watched.settings.longest_open_s
    may_follow = {"closed": {"open"}, "open": {"half_open", "closed"}, "half_open": {"open", "closed"}}
    for event in watched.events:
        assert event.after in may_follow[event.before]
    assert [event.before for event in watched.events[1:]] == [event.after for event in watched.events[:-1]]


def test_a_breaker_begins_closed() -> None:
    assert Breaker("suffix", "chat").left_out(9) is None
