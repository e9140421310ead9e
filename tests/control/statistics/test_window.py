"""The evidence of a moving window: what it keeps, what it forgets, and how often it is wrong."""

import math
import random
from dataclasses import replace

import pytest

from prolepsis.control.statistics.arms import Arm
from prolepsis.control.statistics.guardrail import Guardrail
from prolepsis.control.statistics.judge import Levels, StageEvidence, judge, outcome_of
from prolepsis.control.statistics.means import Limit, MeanDifference
from prolepsis.control.statistics.window import NUM_STARTS, WINDOW_MINUTES, WindowEvidence
from tests.simulation.rollout_traffic import Damage
from tests.simulation.watching import GUARDRAILS, LEVELS, alarms, needed, peak_evidence, seconds_to_alarm, watched

TAKEN = Guardrail(name="taken", metric="acceptance", measure=Limit(limit=0.4, num_points=33), better="higher")
ERRORS = Guardrail(name="errors", metric="error", measure=MeanDifference(margin=0.05))
EMPTY = WindowEvidence("r", 2, 1, spans=())


def seen(
    window: WindowEvidence, minutes: range, acceptance: float, *, arm: Arm = "canary", number: int = 5
) -> WindowEvidence:
    for minute in minutes:
        for _ in range(number):
            window = window.observe([TAKEN, ERRORS], arm, {"acceptance": acceptance, "error": 0.0}, now=60.0 * minute)
    return window


def test_new_harm_is_seen_however_long_the_service_was_good() -> None:
    good = seen(EMPTY, range(1200), 0.8)
    stage = StageEvidence("r", 2, run=1)
    for span in good.spans:
        stage += span.evidence
    bad, number = good, 0
    while outcome_of([TAKEN], bad, share=1.0, levels=LEVELS)[0] != "fail":
        number += 1
        assert number < 60, "a request that drafts in vain counts as much as without the good ones"
        bad = bad.observe([TAKEN], "canary", {"acceptance": 0.0}, now=60.0 * 1200 + number)
        stage = stage.observe([TAKEN], "canary", {"acceptance": 0.0})
    assert outcome_of([TAKEN], stage, share=1.0)[0] == "pass", "the whole stage still looks good"


def test_it_is_bounded_by_a_day_and_fifty_spans() -> None:
    window = seen(EMPTY, range(3000), 0.8, number=1)
    assert len(window.spans) <= 50
    assert WINDOW_MINUTES <= window.num_canary <= 1.2 * WINDOW_MINUTES
    lengths = [span.num_minutes for span in window.spans]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[-4:] == [1, 1, 1, 1]
    assert all(span.first % span.num_minutes == 0 for span in window.spans)
    ends = [span.first + span.num_minutes for span in window.spans]
    assert ends[:-1] == [span.first for span in window.spans[1:]]
    assert window.at(60.0 * 9000).spans == ()


def test_replicas_together_see_what_one_would_also_if_one_is_gone_for_an_hour() -> None:
    one, gone, both = seen(EMPTY, range(100), 0.8), seen(EMPTY, range(40), 0.3), EMPTY
    for minute in range(100):
        both = seen(both, range(minute, minute + 1), 0.8)
        both = seen(both, range(minute, minute + 1), 0.3) if minute < 40 else both
    merged = (one + gone).at(60.0 * 99)
    assert [(span.first, span.num_minutes) for span in merged.spans] == [
        (span.first, span.num_minutes) for span in both.spans
    ]
    for ours, theirs in zip(merged.scores_of(TAKEN).spans, both.scores_of(TAKEN).spans, strict=True):
        assert ours.canary.weights == pytest.approx(theirs.canary.weights)
    with pytest.raises(AssertionError, match="of one stage"):
        one + WindowEvidence("r", 2, 2, spans=())


def test_it_survives_being_stored() -> None:
    window = seen(EMPTY, range(20), 0.7)
    assert WindowEvidence.from_json(window.to_json()) == window


def test_without_a_request_there_is_no_evidence() -> None:
    judgement = judge([TAKEN, ERRORS], EMPTY, share=0.95, levels=LEVELS)
    assert [one.harm_evidence for one in judgement.guardrails] == [0.0, 0.0]


def test_values_that_come_later_do_not_count_the_request_again() -> None:
    window = EMPTY.observe([ERRORS], "canary", {}, now=0.0)
    window = window.observe([ERRORS], "canary", {"error": 1.0}, now=100.0, late=True)
    assert (window.num_canary, window.scores_of(ERRORS).total.canary.count) == (1, 1)


def test_arms_that_became_uneven_leave_limits_to_decide() -> None:
    window = seen(seen(EMPTY, range(60), 0.8), range(60), 0.8, arm="control", number=5)
    assert judge([TAKEN, ERRORS], window, share=0.95, levels=LEVELS).reason == "uneven_arms"
    window = seen(window, range(60, 80), 0.0)
    assert outcome_of([TAKEN, ERRORS], window, share=0.95, levels=LEVELS) == ("fail", "harm")


def test_at_the_limit_false_alarms_keep_their_level_over_all_looks() -> None:
    """Thirty bets begin in each run, and the level of 30 % holds over as many."""
    levels, rate = Levels(rollback=0.3, num_starts=30), replace(TAKEN, measure=Limit(limit=0.4))
    rng, failed = random.Random(4), 0
    for _ in range(100):
        window = EMPTY
        for request in range(300):
            value = float(rng.random() < 0.4)
            window = window.observe([rate], "canary", {"acceptance": value}, now=6.0 * request)
            if request % 10 == 9 and outcome_of([rate], window, share=1.0, levels=levels)[0] == "fail":
                failed += 1
                break
    assert 0 < failed <= 30


def test_healthy_rules_raise_no_alarm() -> None:
    """Few rules and days; `benchmarks/watch_alarms.py` states the rate over a hundred rules and thirty days."""
    assert alarms([peak_evidence(seed, 2) for seed in range(6)]) == 0


def test_the_simulation_sees_at_least_the_evidence_that_is_judged() -> None:
    window, _, guardrails = watched(5, 240)
    found = judge(guardrails, window.at(60.0 * 240), share=0.95, levels=LEVELS)
    most = max(one.harm_evidence for one in found.guardrails)
    assert -math.inf < most <= peak_evidence(5, 1, minutes=240) + 1e-6
    assert needed() == pytest.approx(math.log(len(GUARDRAILS) * NUM_STARTS / 0.05))


@pytest.mark.parametrize("seed", range(2))
def test_damage_is_seen_within_minutes_at_a_request_a_second(seed: int) -> None:
    assert (seconds_to_alarm(seed, Damage(acceptance=-0.55)) or 999) <= 150
