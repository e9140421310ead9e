"""What speculation brings, in one sentence for each route: a figure with its bounds, or why there is none."""

from collections.abc import Sequence

import pytest

from prolepsis.control.cost.comparison import ArmComparison
from prolepsis.control.cost.speedup import LATEST, LatestModes, RouteSpeedup, speedups
from prolepsis.core.reasons import EffectiveReason
from prolepsis.core.stats import EffectiveMode
from prolepsis.core.traffic_sums import Interval

CHAT = "/v1/chat/completions"


def mode(reason: EffectiveReason) -> EffectiveMode:
    return EffectiveMode("on" if reason in ("speculating", "overload_shallow") else "off", reason, 1)


def seen(*reasons: EffectiveReason, route: str = CHAT) -> LatestModes:
    modes = LatestModes()
    for reason in reasons:
        modes.observe(route, mode(reason), is_control=False)
    return modes


def group(num_control: int, saved: Interval, *, num_speculating: int = 900, route: str = CHAT) -> ArmComparison:
    return ArmComparison("route", route, num_speculating, num_control, 0.01, 0.0142, None, saved, True, Interval(None))


def said(modes: LatestModes, *groups: ArmComparison, killed: Sequence[str] = ()) -> list[RouteSpeedup]:
    return list(speedups(modes, {"chat@1": groups} if groups else {}, killed))


def test_a_saving_with_its_bounds_is_a_speedup_with_its_bounds() -> None:
    saving = Interval(1 - 1 / 1.42, 1 - 1 / 1.38, 1 - 1 / 1.47)
    [one] = said(seen("speculating"), group(2118, saving))
    assert one.sentence == "speculation here: 1.42x (1.38 to 1.47), 2,118 control requests"
    assert (one.route, one.rollout, one.off) == (CHAT, "chat@1", None)
    assert one.speedup is not None
    assert one.speedup.lower == pytest.approx(1.38)


@pytest.mark.parametrize(
    ("num_control", "num_speculating", "expected"),
    [
        (0, 900, "no figure yet, 0 of 20 control requests needed"),
        (19, 900, "no figure yet, 19 of 20 control requests needed"),
        (20, 7, "no figure yet, 7 of 20 speculating requests needed"),
        (20, 900, "no figure yet after 20 control requests"),
    ],
)
def test_what_is_missing_for_a_figure_is_said(num_control: int, num_speculating: int, expected: str) -> None:
    [one] = said(seen("speculating"), group(num_control, Interval(None), num_speculating=num_speculating))
    assert one.sentence == f"speculation here: {expected}"
    assert one.speedup is None


def test_bounds_that_are_not_known_are_open() -> None:
    [one] = said(seen("speculating"), group(25, Interval(0.5, None, 1.0)))
    assert one.sentence == "speculation here: 2.00x (0 to any), 25 control requests"


def test_a_route_without_control_requests_has_no_figure() -> None:
    [one] = said(seen("speculating"), group(100, Interval(0.5, 0.4, 0.6), route="/v1/completions"))
    assert one.sentence == "speculation here: not measured, as no rollout keeps control requests of the route"
    assert (one.rollout, one.num_control) == ("", 0)


@pytest.mark.parametrize(
    ("reasons", "expected"),
    [
        (("rule_off", "breaker_open", "breaker_open"), "off, breakers disable the proposers of this class"),
        (("rule_off",), "off, the policy's rule says off"),
        (("no_rule",), "off, no rule of the policy matched it, and the default is off"),
        (("not_drawn",), "off, its rule did not draw it: it is compared, or outside the share"),
        (("not_worth_it",), "off, verifying the draft would not have paid"),
    ],
)
def test_where_no_request_speculates_the_most_frequent_reason_is_said(
    reasons: Sequence[EffectiveReason], expected: str
) -> None:
    [one] = said(seen(*reasons), group(100, Interval(0.5, 0.4, 0.6)))
    assert one.sentence == f"speculation here: {expected}"
    assert one.speedup is not None, "the figure of its past is there for programs"


@pytest.mark.parametrize("scope", ["everything", f"route:{CHAT}"])
def test_the_kill_switch_counts_before_the_next_request(scope: str) -> None:
    [one] = said(seen("speculating"), killed=(scope,))
    assert (one.off, one.sentence) == ("killed", "speculation here: off, the kill switch stops it")


def test_the_kill_switch_of_something_else_is_no_reason() -> None:
    [one] = said(seen("speculating"), killed=("route:/v1/completions", "tenant:bank"))
    assert one.off is None


def test_control_requests_do_not_show_that_speculation_is_off() -> None:
    modes = LatestModes()
    modes.observe(CHAT, mode("not_drawn"), is_control=True)
    [one] = said(modes, group(1, Interval(None)))
    assert (one.off, one.sentence) == (None, "speculation here: no figure yet, 1 of 20 control requests needed")


def test_only_the_latest_requests_say_whether_it_is_on() -> None:
    killed: list[EffectiveReason] = ["killed"] * LATEST
    [one] = said(seen("speculating", *killed))
    assert one.off == "killed"
    [one] = said(seen("speculating", *killed[1:]))
    assert one.off is None


def test_each_route_has_its_own_line() -> None:
    modes = seen("speculating")
    modes.observe("/v1/completions", mode("flag_off"), is_control=False)
    assert [(one.route, one.off) for one in said(modes)] == [(CHAT, None), ("/v1/completions", "flag_off")]
