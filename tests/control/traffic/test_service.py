"""Failures and latencies that the overview shows, by the limits at which the shipped objectives page."""

from dataclasses import replace
from typing import Literal

import pytest
import yaml

from prolepsis.control.traffic.service import (
    ANSWERED,
    BURNS,
    FIRST_TOKEN,
    LATELY_S,
    LONG_S,
    PER_TOKEN,
    UNTIMED,
    ServiceLevel,
)
from prolepsis.core.ended import End, RequestEnded
from prolepsis.ops.monitoring.burn_rates import BURN_RATES, seconds
from prolepsis.ops.monitoring.files import shipped
from prolepsis.server.admission.load_shedding import BACKGROUND_TIER
from tests.core.telemetry.test_requests import ABOUT, ended, prompt

NOW = 1_700_000_000.0


def done(first_s: float = 0.5, total_s: float = 1.0, end: End = "finished") -> RequestEnded:
    one = prompt()
    stats = replace(one.stats, first_token_s=first_s, total_s=total_s, num_output_tokens=51)
    return replace(ended(replace(one, end=end, waited_s=0.0, stats=stats), about=ABOUT), end=end)


def without_answer(end: End) -> RequestEnded:
    return RequestEnded(about=ABOUT, end=end, error=None, prompts=())


def level(*requests: RequestEnded, at: float = NOW) -> ServiceLevel:
    service = ServiceLevel()
    for one in requests:
        service.ended(one, at)
    return service


def test_the_figures_are_those_of_five_minutes() -> None:
    service = level(*[done()] * 9, without_answer("failed"), without_answer("expired"), without_answer("left"))
    found = service.reply(NOW + 100.0)
    assert (found.num_failed, found.num_judged) == (1, 10)
    assert found.ends == {"finished": 9, "failed": 1, "expired": 1, "left": 1}
    assert (found.first_token_s, found.total_s) == ([0.5, 0.5], [1.0, 1.0])
    assert found.per_token_s == pytest.approx([0.01, 0.01])
    later = service.reply(NOW + 400.0)
    assert (later.num_judged, later.ends, later.first_token_s) == (0, {}, [None, None])
    assert later.missed == []


@pytest.mark.parametrize(
    ("bad", "alert"),
    [
        (without_answer("failed"), "AvailabilityBudgetBurns"),
        (without_answer("aborted"), "AvailabilityBudgetBurns"),
        (done(first_s=2.6, total_s=3.0), "FirstTokenBudgetBurns"),
        (done(total_s=5.0), "TokenLatencyBudgetBurns"),
    ],
)
def test_what_pages_needs_attention(bad: RequestEnded, alert: str) -> None:
    good = [done()] * 99
    [missed] = level(*good, *[bad] * 20).reply(NOW).missed
    assert (missed.alert, missed.num_missed, missed.burns) == (alert, 20, True)
    [missed] = level(done(), bad).reply(NOW).missed
    assert (missed.alert, missed.burns) == (alert, False), "two requests are no evidence"
    assert level(*[done()] * 1000, bad).reply(NOW).missed == []


@pytest.mark.parametrize("end", ["expired", "left", "refused"])
def test_what_clients_did_needs_no_attention(end: Literal["expired", "left", "refused"]) -> None:
    assert level(*[done()] * 50, *[without_answer(end)] * 50).reply(NOW).missed == []


def test_what_is_over_needs_no_attention() -> None:
    service = level(*[without_answer("failed")] * 100)
    for _ in range(100):
        service.ended(done(), NOW + 400.0)
    assert service.reply(NOW + 400.0).missed == []


def test_a_clock_that_is_set_back_stops_nothing() -> None:
    service = level(done())
    service.ended(done(), NOW - 10_000.0)
    assert service.reply(NOW - 10_000.0).num_judged >= 1


def test_the_limits_are_those_of_the_shipped_objectives() -> None:
    slos = {one["alerting"]["name"]: one for one in yaml.safe_load(shipped("slos.yaml"))["slos"]}
    page = BURN_RATES[0]
    assert (page.factor, seconds(page.short), seconds(page.long)) == (BURNS, LATELY_S, LONG_S)
    for goal in (ANSWERED, FIRST_TOKEN, PER_TOKEN):
        slo = slos[goal.alert]
        assert round(1 - slo["objective"] / 100, 6) == goal.budget
        assert slo["alerting"]["minimum_events"] == goal.least
        if goal.limit_s:
            assert f'le="{goal.limit_s:g}"' in slo["sli"]["events"]["error_query"]


def test_lines_of_batches_are_late_for_no_objective() -> None:
    """They wait for all others by design; those that fail count as any request does."""
    about = replace(ABOUT, tier=UNTIMED)
    late = replace(done(first_s=60.0, total_s=900.0), about=about)
    found = level(*[late] * 200).reply(NOW)
    assert (found.missed, found.first_token_s, found.ends) == ([], [None, None], {"finished": 200})
    [missed] = level(*[late] * 100, *[replace(without_answer("failed"), about=about)] * 20).reply(NOW).missed
    assert missed.alert == "AvailabilityBudgetBurns"


def test_the_tier_of_batches_has_one_name() -> None:
    assert UNTIMED == BACKGROUND_TIER
    for slo in yaml.safe_load(shipped("slos.yaml"))["slos"]:
        events = slo["sli"].get("events", {})
        selectors = [part for query in events.values() for part in query.split("seconds_")[1:] if "by (tier)" in query]
        assert all(f'tier!="{UNTIMED}"' in part for part in selectors)
        assert bool(selectors) == (slo["alerting"]["labels"]["cause"] == "latency")
