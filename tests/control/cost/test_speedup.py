"""What speculation brings, in one sentence for each route: a figure with its bounds, or why there is none."""

from collections.abc import Sequence

import pytest

from prolepsis.control.cost.comparison import ArmComparison
from prolepsis.control.cost.speedup import LATEST, LatestModes, speedups
from prolepsis.core.reasons import EffectiveReason
from prolepsis.core.stats import EffectiveMode
from prolepsis.core.traffic_sums import Interval

CHAT, OTHER = "/v1/chat/completions", "/v1/completions"
KILLED: Sequence[EffectiveReason] = ["killed"] * LATEST
NO_GROUP = "not measured, as no rollout keeps control requests of the route"


def seen(*reasons: EffectiveReason, is_control: bool = False) -> LatestModes:
    modes = LatestModes()
    for reason in reasons:
        mode = EffectiveMode("on" if reason in ("speculating", "overload_shallow") else "off", reason, 1)
        modes.observe(CHAT, mode, is_control=is_control)
    return modes


def group(
    num_control: int, *saved: float | None, num_speculating: int = 900, route: str = CHAT
) -> Sequence[ArmComparison]:
    saving = Interval(*saved) if saved else Interval(None)
    return [
        ArmComparison("route", route, num_speculating, num_control, 0.01, 0.0142, None, saving, True, Interval(None))
    ]


@pytest.mark.parametrize(
    ("modes", "groups", "killed", "said"),
    [
        (
            *(seen("speculating"), group(2118, 1 - 1 / 1.42, 1 - 1 / 1.38, 1 - 1 / 1.47), ()),
            "1.42x (1.38 to 1.47), 2,118 control requests",
        ),
        (seen("speculating"), group(25, 0.5, None, 1.0), (), "2.00x (0 to any), 25 control requests"),
        (seen("speculating"), group(0), (), "no figure yet, 0 of 20 control requests needed"),
        (seen("speculating"), group(19), (), "no figure yet, 19 of 20 control requests needed"),
        (
            *(seen("speculating"), group(20, num_speculating=7), ()),
            "no figure yet, 7 of 20 speculating requests needed",
        ),
        (seen("speculating"), group(20), (), "no figure yet after 20 control requests"),
        (seen("speculating"), [], (), NO_GROUP),
        (seen("speculating"), group(100, 0.5, 0.4, 0.6, route=OTHER), (), NO_GROUP),
        # where no request speculates, the most frequent reason
        (
            *(seen("rule_off", "breaker_open", "breaker_open"), group(100, 0.5, 0.4, 0.6), ()),
            "off, breakers disable the proposers of this class",
        ),
        (seen("rule_off"), [], (), "off, the policy's rule says off"),
        (seen("no_rule"), [], (), "off, no rule of the policy matched it, and the default is off"),
        (seen("not_drawn"), [], (), "off, its rule did not draw it: it is compared, or outside the share"),
        (seen("not_worth_it"), [], (), "off, verifying the draft would not have paid"),
        # the latest requests, without control requests
        (seen("not_drawn", is_control=True), group(1), (), "no figure yet, 1 of 20 control requests needed"),
        (seen("speculating", *KILLED), [], (), "off, the kill switch stops it"),
        (seen("speculating", *KILLED[1:]), [], (), NO_GROUP),
        # the kill switch counts before the next request
        (seen("speculating"), [], ("everything",), "off, the kill switch stops it"),
        (seen("speculating"), [], (f"route:{CHAT}",), "off, the kill switch stops it"),
        (seen("speculating"), [], (f"route:{OTHER}", "tenant:bank"), NO_GROUP),
    ],
)
def test_a_route_has_a_figure_or_a_reason(
    modes: LatestModes, groups: Sequence[ArmComparison], killed: Sequence[str], said: str
) -> None:
    [line] = speedups(modes, {"chat@1": groups} if groups else {}, killed)
    assert line.sentence == f"speculation here: {said}"
    assert (line.off is None) == (not said.startswith("off"))
    assert line.rollout == ("chat@1" if groups and groups[0].value == CHAT else "")


def test_a_saving_with_its_bounds_is_a_speedup_with_its_bounds_also_where_it_is_off() -> None:
    [line] = speedups(seen("rule_off"), {"chat@1": group(100, 0.5, 0.4, 0.6)})
    assert line.speedup == Interval(2.0, 1.0 / 0.6, 2.5)


def test_each_route_has_its_own_line() -> None:
    modes = seen("speculating")
    modes.observe(OTHER, EffectiveMode("off", "flag_off", 1), is_control=False)
    assert [(line.route, line.off) for line in speedups(modes, {})] == [(CHAT, None), (OTHER, "flag_off")]
