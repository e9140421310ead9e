"""One verdict for each rule: what the readings make of it, in which words, and how many requests are missing."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from prolepsis.control.cost.comparison import ArmComparison
from prolepsis.control.verdict.verdict import (
    LATEST,
    MOST_NEEDED,
    LatestModes,
    RuleReadings,
    followed,
    judge_rule,
    more_requests,
)
from prolepsis.core.reasons import EffectiveReason
from prolepsis.core.stats import EffectiveMode
from prolepsis.core.traffic_sums import Interval


def compared(*saved: float | None, canary: int = 900, control: int = 2118) -> ArmComparison:
    saving = Interval(*saved) if saved else Interval(None)
    return ArmComparison("all", "", canary, control, 0.01, 0.0142, None, saving, True, Interval(None))


ROLLED = RuleReadings(rule="editor", rollout="editor@1")
COUNTS = "900 canary and 2,118 control requests"


@pytest.mark.parametrize(
    ("known", "verdict", "rests_on"),
    [
        (
            replace(ROLLED, compared=compared(1 - 1 / 1.42, 1 - 1 / 1.38, 1 - 1 / 1.47)),
            "keep: it pays",
            f"1.42x (1.38 to 1.47), {COUNTS}",
        ),
        (replace(ROLLED, compared=compared(0.5, 0.1, 1.0)), "keep: it pays", f"2.00x (1.11 or more), {COUNTS}"),
        (
            replace(ROLLED, compared=compared(-0.1, -0.2, -0.01)),
            "stop: it costs more than it brings",
            f"0.91x (0.83 to 0.99), {COUNTS}",
        ),
        (
            replace(ROLLED, compared=compared(0.0, -0.01, 0.01)),
            "stop: it brings less than 2 %",
            f"1.00x (0.99 to 1.01), {COUNTS}",
        ),
        (replace(ROLLED, compared=compared(0.3, 0.2, 0.4), harmed=True), "stop: a guardrail showed harm", None),
        (
            replace(ROLLED, compared=compared(0.2, -0.2, 0.5, canary=50, control=50), compared_per_s=0.01),
            "not known yet: what was seen may be chance",
            "1.25x (0.83 to 2.00); 50 canary and 50 control requests; needs about 300 more, some 8.33 h at this "
            "traffic",
        ),
        (
            replace(ROLLED, compared=compared(0.011, -0.2, 0.2)),
            "not known yet: what was seen may be chance",
            f"1.01x (0.83 to 1.25); {COUNTS}; needs more than 20,000",
        ),
        (
            ROLLED,
            "not known yet: too few requests were compared",
            "0 canary and 0 control requests; needs about 150 more",
        ),
        (
            replace(ROLLED, compared=compared(canary=19, control=30)),
            "not known yet: too few requests were compared",
            "19 canary and 30 control requests; needs about 101 more",
        ),
        (
            RuleReadings(rule="default", predicted=0.31),
            "not known yet: no requests are drawn to be compared with plain decoding",
            "`prolepsis pilot start` draws some; by prediction it saves 31% of device time",
        ),
        # what keeps it off comes before what it saved, and the kill switch before harm
        (replace(ROLLED, off="no_proposer"), "off: no proposer that its rule names is loaded", ""),
        (replace(ROLLED, off="overload_plain"), "off: requests waited too long in the queue", ""),
        (replace(ROLLED, off="killed", harmed=True), "off: the kill switch stops it", ""),
        (replace(ROLLED, off="rolled_back", harmed=True), "stop: a guardrail showed harm", ""),
        (replace(ROLLED, off="rolled_back"), "off: its rollout was rolled back", ""),
    ],
)
def test_a_rule_has_one_verdict_in_words(known: RuleReadings, verdict: str, rests_on: str | None) -> None:
    made = judge_rule(known)
    assert made.verdict == verdict
    assert rests_on is None or made.rests_on == rests_on
    assert made.changed_by


@pytest.mark.parametrize(
    ("saved", "number", "needed"),
    [
        ((0.25, 0.0, 0.5), 200, 1),  # at the edge
        ((0.25, -0.25, 0.75), 200, 600),  # twice as narrow takes four times as many
        ((-0.1, -0.3, 0.1), 100, 178),  # 0.2 wide above, 0.12 from what is worth having
        ((0.0199, -0.2, 0.2), 1000, None),
    ],
)
def test_the_requests_that_are_missing_follow_the_width_of_the_bounds(
    saved: Sequence[float], number: int, needed: int | None
) -> None:
    assert more_requests(compared(*saved, canary=number // 2, control=number // 2)) == needed
    assert needed is None or needed <= MOST_NEEDED


def test_a_verdict_holds_since_its_words_became_these() -> None:
    few, pays = judge_rule(ROLLED), judge_rule(replace(ROLLED, compared=compared(0.3, 0.2, 0.4)))
    first = followed(few, None, 100.0)
    assert followed(replace(few, num_control=7), first, 200.0).since == 100.0
    assert followed(pays, first, 300.0).since == 300.0


def modes(*reasons: EffectiveReason) -> LatestModes:
    seen = LatestModes()
    for reason in reasons:
        seen.observe("editor", EffectiveMode("on" if reason == "speculating" else "off", reason, 1))
    return seen


@pytest.mark.parametrize(
    ("reasons", "off"),
    [
        ([], None),
        (["speculating"], None),
        (["speculating", *["killed"] * (LATEST - 1)], None),
        (["speculating", *["killed"] * LATEST], "killed"),
        (["rule_off", "breaker_open", "breaker_open"], "breaker_open"),
    ],
)
def test_a_rule_is_off_where_none_of_its_latest_requests_speculated(
    reasons: Sequence[EffectiveReason], off: str | None
) -> None:
    assert modes(*reasons).off("editor") == off
    assert modes(*reasons).off("another") is None


def test_rules_that_the_policy_lost_are_forgotten() -> None:
    seen = modes("killed")
    seen.keep(["another"])
    assert seen.off("editor") is None
