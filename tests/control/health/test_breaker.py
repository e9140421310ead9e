"""Breakers, from recorded counts and a fake clock."""

from dataclasses import dataclass, field, fields, replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prolepsis.control.health.breaker import (
    Breaker,
    BreakerEvent,
    Breakers,
    BreakerSettings,
    OperatorState,
    TripReason,
    set_state,
    step,
    trip,
)
from prolepsis.core.plan import DisabledProposer
from prolepsis.core.stats import TrafficClassCounts
from prolepsis.engine.drafting.ledger import Ledger

SETTINGS = BreakerSettings()


@dataclass
class Watched:
    settings: BreakerSettings = SETTINGS
    now: float = 100.0
    counts: TrafficClassCounts = field(default_factory=lambda: TrafficClassCounts("suffix", "chat"))
    breaker: Breaker = field(default_factory=lambda: Breaker("suffix", "chat"))
    events: list[BreakerEvent] = field(default_factory=list)

    def poll(self, seconds: float = 0.2) -> list[BreakerEvent]:
        """Let time pass and read the counts; return what happened."""
        self.now += seconds
        self.breaker, told = step(self.breaker, self.counts, self.now, self.settings)
        self.events += told
        return list(told)

    def draft(self, number: int, acceptance: float, *, cost: float = 0.2, accepted: float = 0.5) -> list[BreakerEvent]:
        """Judge and verify up to `number` drafts, looking after each ten, until something happens.

        `cost` and `accepted`: tokens a draft.
        """
        for first in range(0, number, 10):
            size = min(10, number - first)
            self.add(size, round(size * acceptance), cost=size * cost, accepted=size * accepted)
            if told := self.poll():
                return told
        return []

    def add(self, judged: int, right: int, *, cost: float = 0.0, accepted: float = 0.0) -> None:
        c = self.counts
        self.counts = replace(
            c,
            num_asked=c.num_asked + judged,
            num_judged=c.num_judged + judged,
            num_right=c.num_right + right,
            num_rounds=c.num_rounds + judged,
            spent=c.spent + cost,
            gained=c.gained + accepted,
            gained_squared=c.gained_squared + accepted,
            errors_in_row=0,
            late_in_row=0,
        )

    def fail(self, times: int = 1) -> None:
        c = self.counts
        self.counts = replace(c, num_errors=c.num_errors + times, errors_in_row=c.errors_in_row + times)

    def lag(self, times: int = 1) -> None:
        c = self.counts
        asked, late, row = c.num_asked + times, c.num_late + times, c.late_in_row + times
        self.counts = replace(c, num_asked=asked, num_late=late, late_in_row=row)

    def set(self, to: OperatorState) -> list[BreakerEvent]:
        self.breaker, told = set_state(self.breaker, to, self.now, "kim")
        return list(told)


def patient() -> BreakerSettings:
    """Settings of a breaker that acceptance alone can open."""
    return BreakerSettings(max_cost=inf, cost_to_close=inf)


def tripped() -> Watched:
    watched = Watched()
    [event] = watched.draft(200, 0.0)
    assert (event.before, event.after, event.reason) == ("closed", "open", "acceptance")
    return watched


def half_open() -> Watched:
    watched = tripped()
    watched.poll(SETTINGS.open_s)
    assert watched.breaker.state == "half_open"
    return watched


def test_a_proposer_that_fares_well_is_let_be() -> None:
    watched = Watched()
    assert watched.breaker.disabled(SETTINGS.probes) is None
    assert watched.draft(5000, 0.6) == []
    assert watched.breaker.disabled(SETTINGS.probes) is None


def test_it_opens_where_the_first_token_is_surely_wrong_and_says_by_which_numbers() -> None:
    watched = Watched()
    [event] = watched.draft(200, 0.0, cost=0.01, accepted=0.0)
    assert (event.reason, event.acceptance, event.open_s) == ("acceptance", 0.0, SETTINGS.open_s)
    assert SETTINGS.min_judged <= event.judged < 100, "soon, but not on little"
    assert (event.proposer, event.traffic_class) == ("suffix", "chat")
    assert BreakerEvent(**{f.name: getattr(event, f.name) for f in fields(event)}) == event
    assert watched.breaker.disabled(SETTINGS.probes) == DisabledProposer("suffix", "chat", compared=True)


@pytest.mark.parametrize(
    ("settings", "number", "acceptance"), [(SETTINGS, SETTINGS.min_judged - 4, 0.0), (patient(), 3000, 0.1)]
)
def test_little_evidence_and_acceptance_near_the_threshold_open_nothing(
    settings: BreakerSettings, number: int, acceptance: float
) -> None:
    assert Watched(settings=settings).draft(number, acceptance) == []


def test_good_results_long_ago_do_not_hide_bad_ones_now() -> None:
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
        watched.poll()
        plain.poll()
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
        assert watched.poll() == []
        watched.add(1, 1)
        go_wrong(limit - 1)
        assert watched.poll() == [], "a call that went well begins the row anew"
        go_wrong()
        [event] = watched.poll()
        assert event.reason == reason


def test_one_call_that_was_not_waited_for_opens_it() -> None:
    for watched in (Watched(), half_open()):
        watched.draft(20, 0.6)
        watched.counts = replace(watched.counts, num_overdue=watched.counts.num_overdue + 1)
        [event] = watched.poll()
        assert (event.after, event.reason) == ("open", "overdue")


def test_it_stays_open_while_the_call_has_not_come_back() -> None:
    watched = Watched()
    watched.counts = replace(watched.counts, num_overdue=1, is_lost=True)
    [event] = watched.poll()
    assert watched.poll(10.0 * event.open_s) == []
    watched.counts = replace(watched.counts, is_lost=False)
    [event] = watched.poll()
    assert event.after == "half_open"


@pytest.mark.parametrize("proposer", ["client", "prediction"])
def test_useless_drafts_that_clients_bring_open_nothing(proposer: str) -> None:
    """One tenant's would else take them from all tenants of the traffic class."""
    watched = Watched(counts=TrafficClassCounts(proposer, "chat"), breaker=Breaker(proposer, "chat"))
    assert watched.draft(2000, 0.0, cost=1.5, accepted=0.0) == []
    assert trip(watched.breaker, "cliff", watched.now, SETTINGS) == (watched.breaker, ())
    watched.fail(SETTINGS.errors_in_row)
    [event] = watched.poll()
    assert (event.after, event.reason) == ("open", "errors")
    watched.poll(SETTINGS.open_s)
    [event] = watched.draft(40, 0.0, accepted=0.0)
    assert (event.after, event.reason) == ("closed", "recovered")


def test_it_is_probed_after_a_while_and_closes_where_it_has_recovered() -> None:
    watched = tripped()
    assert watched.poll(SETTINGS.open_s - 0.1) == []
    [event] = watched.poll(0.2)
    assert (event.after, event.reason) == ("half_open", "backoff_elapsed")
    assert watched.breaker.disabled(7) == DisabledProposer("suffix", "chat", 7, trial_round=1, compared=True)
    [event] = watched.draft(40, 0.5)
    assert (event.before, event.after, event.reason) == ("half_open", "closed", "recovered")
    assert watched.breaker.disabled(7) is None


def test_it_says_why_it_is_in_its_state() -> None:
    assert Watched().breaker.why is None
    assert (tripped().breaker.why, half_open().breaker.why) == ("acceptance", "acceptance")
    forced = tripped()
    forced.set("forced_open")
    assert (forced.breaker.why, forced.breaker.by) == ("operator", "kim"), "not what opened it before"
    forced.set("closed")
    assert (forced.breaker.why, forced.breaker.by) == (None, "")


def test_between_the_two_thresholds_it_stays_what_it_is() -> None:
    watched = Watched(settings=patient())
    assert watched.draft(1000, 0.1) == []
    watched = half_open()
    [event] = watched.draft(40, 0.1)
    assert (event.after, event.reason) == ("open", "acceptance")


def test_back_off_doubles_up_to_its_limit_and_begins_again_after_a_calm_time() -> None:
    watched = tripped()
    waits = []
    for _ in range(9):
        waits.append(watched.breaker.open_s)
        watched.poll(watched.breaker.open_s + 0.1)
        watched.draft(30, 0.0)
        assert watched.breaker.state == "open"
    assert waits == [10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 600.0, 600.0, 600.0]
    watched.poll(600.1)
    watched.draft(30, 0.5)
    watched.draft(100, 0.0)
    assert (watched.breaker.state, watched.breaker.open_s) == ("open", 600.0), "too soon to be trusted again"
    watched.poll(600.1)
    watched.draft(30, 0.5)
    watched.poll(SETTINGS.reset_after_s)
    watched.draft(200, 0.0)
    assert (watched.breaker.state, watched.breaker.open_s) == ("open", 10.0)


def test_one_fault_ends_a_half_open_round() -> None:
    for reason in ("errors", "late"):
        watched = half_open()
        if reason == "errors":
            watched.fail()
        else:
            watched.lag()
        [event] = watched.poll()
        assert (event.after, event.reason, event.open_s) == ("open", reason, 20.0)


def test_faults_of_before_do_not_end_a_half_open_round() -> None:
    watched = Watched()
    watched.fail(9)
    watched.poll()
    watched.poll(SETTINGS.open_s)
    assert watched.breaker.state == "half_open"
    assert watched.poll() == []


def test_a_round_that_brings_too_little_to_judge_is_repeated_as_soon() -> None:
    watched = half_open()
    assert watched.poll(10_000.0) == [], "a round that brings nothing waits"
    asked = watched.counts.num_asked + SETTINGS.probes
    watched.counts = replace(watched.counts, num_asked=asked)
    [event] = watched.poll()
    assert (event.after, event.reason, event.open_s) == ("open", "no_evidence", SETTINGS.open_s)


@pytest.mark.parametrize("to", ["forced_open", "forced_closed"])
def test_a_state_set_by_an_operator_stays_for_any_counts(to: OperatorState) -> None:
    watched = Watched()
    [event] = watched.set(to)
    assert (event.reason, event.by, event.after) == ("operator", "kim", to)
    assert watched.set(to) == []
    for acceptance in (0.0, 0.9):
        assert watched.draft(1000, acceptance) == []
    watched.fail(50)
    assert watched.poll(10_000.0) == []
    assert (watched.breaker.disabled(1) is not None) == (to == "forced_open")
    watched.set("closed")
    assert watched.poll() == [], "what it did meanwhile is not held against it"
    assert watched.draft(200, 0.0)[0].after == "open"


def test_a_metrics_only_breaker_reports_when_it_would_open() -> None:
    watched = Watched()
    watched.set("metrics_only")
    for _ in range(2):
        before = watched.counts.num_judged
        [event] = watched.draft(400, 0.0)
        assert (event.before, event.after, event.reason) == ("metrics_only", "metrics_only", "acceptance")
        assert watched.breaker.disabled(1) is None
        assert watched.counts.num_judged - before >= SETTINGS.min_judged, "not at every look"


def test_another_proposer_begins_again() -> None:
    for watched in (tripped(), half_open()):
        watched.counts = TrafficClassCounts("suffix", "chat", num_asked=3)
        [event] = watched.poll()
        assert (event.after, event.reason) == ("closed", "replaced")
    watched = tripped()
    watched.set("forced_open")
    watched.counts = TrafficClassCounts("suffix", "chat", num_asked=3)
    assert watched.poll() == []
    assert watched.breaker.state == "forced_open"


def test_a_replacement_that_was_judged_as_often_is_noticed_by_its_other_counts() -> None:
    watched = Watched()
    watched.add(40, 20, cost=1.0, accepted=20.0)
    watched.poll()
    watched.counts = TrafficClassCounts("suffix", "chat")
    watched.add(40, 0)
    watched.poll()
    assert watched.breaker.window.gained_squared == 0.0
    watched.add(10, 5)
    assert watched.poll() == []


def test_a_clock_that_goes_back_lengthens_a_wait_once() -> None:
    watched = tripped()
    watched.poll(-86_400.0)
    watched.poll(SETTINGS.open_s)
    assert watched.breaker.state == "half_open"


readings = st.tuples(
    st.integers(0, 40), st.floats(0.0, 1.0), st.integers(0, 6), st.integers(0, 4), st.floats(0.0, 30.0), st.booleans()
)


@given(st.lists(readings, max_size=80))
def test_any_counts_lead_to_allowed_changes_of_state_only(feed: list[tuple[int, float, int, int, float, bool]]) -> None:
    watched = Watched(settings=BreakerSettings(probes=30))
    for judged, share, errors, late, seconds, restarted in feed:
        if restarted and judged > 35:
            watched.counts = TrafficClassCounts("suffix", "chat")
        watched.add(judged, round(judged * share), cost=judged * 0.5, accepted=judged * share)
        watched.fail(errors)
        watched.lag(late)
        watched.poll(seconds)
        out = watched.breaker.disabled(30)
        assert (out is None) == (watched.breaker.state == "closed")
        assert watched.breaker.open_s <= watched.settings.max_open_s
    may_follow = {"closed": {"open"}, "open": {"half_open", "closed"}, "half_open": {"open", "closed"}}
    for event in watched.events:
        assert event.after in may_follow[event.before]
    assert [event.before for event in watched.events[1:]] == [event.after for event in watched.events[:-1]]


def reading(proposer: str, traffic_class: str, judged: int, right: int) -> TrafficClassCounts:
    return TrafficClassCounts(proposer, traffic_class, num_asked=judged, num_judged=judged, num_right=right)


def test_one_traffic_class_of_one_proposer_is_left_out_and_no_other() -> None:
    breakers = Breakers(BreakerSettings())
    counts = [reading("head", "chat", 500, 0), reading("head", "code", 500, 300), reading("suffix", "chat", 500, 200)]
    [event] = breakers.observe(counts, now=1.0)
    assert (event.proposer, event.traffic_class) == ("head", "chat")
    assert breakers.disabled() == (DisabledProposer("head", "chat", compared=True),)
    assert {key: breaker.state for key, breaker in breakers.all.items()} == {
        ("head", "chat"): "open",
        ("head", "code"): "closed",
        ("suffix", "chat"): "closed",
    }


def test_one_may_be_set_before_anything_is_counted() -> None:
    breakers = Breakers(BreakerSettings())
    [event] = breakers.set(("head", "chat"), "forced_open", 1.0, "kim")
    assert event.after == "forced_open"
    assert breakers.disabled() == (DisabledProposer("head", "chat"),)
    assert breakers.observe([reading("head", "chat", 500, 400)], 2.0) == []
    breakers.set(("head", "chat"), "closed", 3.0, "kim")
    assert breakers.disabled() == ()


def test_all_may_only_measure_at_first() -> None:
    breakers = Breakers(BreakerSettings(), metrics_only=True)
    [event] = breakers.observe([reading("head", "chat", 500, 0)], now=1.0)
    assert (event.before, event.after, event.reason) == ("metrics_only", "metrics_only", "acceptance")
    assert breakers.disabled() == ()
    breakers.set(("head", "chat"), "closed", 2.0, "kim")
    breakers.observe([reading("head", "chat", 1000, 0)], now=3.0)
    assert breakers.disabled() == (DisabledProposer("head", "chat", compared=True),)


def test_one_is_opened_for_what_something_else_has_seen_and_probed_like_any_other() -> None:
    breakers = Breakers(BreakerSettings(open_s=10.0))
    breakers.observe([reading("head", "chat", 500, 400)], 1.0)
    [event] = breakers.trip(("head", "chat"), "cliff", 2.0)
    assert (event.after, event.reason, event.open_s) == ("open", "cliff", 10.0)
    assert breakers.disabled() == (DisabledProposer("head", "chat", compared=True),)
    assert breakers.trip(("head", "chat"), "cliff", 3.0) == (), "it is open"
    [probed] = breakers.observe([reading("head", "chat", 500, 400)], 13.0)
    assert probed.after == "half_open"
    breakers.set(("suffix", "chat"), "forced_closed", 4.0, "kim")
    assert breakers.trip(("suffix", "chat"), "cliff", 5.0) == (), "what was set by hand stays"


@pytest.mark.parametrize(
    ("reason", "compared"), [("cost", True), ("errors", False), ("overdue", False), ("shared", False)]
)
def test_drafts_of_a_proposer_that_works_go_on_being_compared_while_it_is_left_out(
    reason: TripReason, compared: bool
) -> None:
    breakers = Breakers(BreakerSettings())
    breakers.observe([reading("head", "chat", 10, 5)], 1.0)
    breakers.trip(("head", "chat"), reason, 2.0)
    assert [entry.compared for entry in breakers.disabled()] == [compared]
    breakers.set(("head", "chat"), "forced_open", 3.0, "kim")
    assert [entry.compared for entry in breakers.disabled()] == [False]


def test_a_breaker_that_a_damaged_head_opened_closes_for_the_head_that_is_put_in_its_place() -> None:
    """The next one is disabled while it is open, so it counts nothing: the ledger still shows that counts fell."""
    ledger, breakers = Ledger(["head"]), Breakers(SETTINGS)
    for _ in range(200):
        ledger.ask("head", [("chat", "")], 0.001, None)
        ledger.judge("head", ("chat", ""), right=False)
    breakers.observe(ledger.counts(), 100.0)
    assert [one.proposer for one in breakers.disabled()] == ["head"]
    ledger.exchange("head")
    [event] = breakers.observe(ledger.counts(), 100.2)
    assert (event.before, event.after, event.reason) == ("open", "closed", "replaced")
    assert breakers.disabled() == ()
