"""What a stage lacks to be promoted, and whether its guardrails can still decide in time."""

from dataclasses import replace

import pytest

from prolepsis.control.rollout.machine import judgement_on
from prolepsis.control.rollout.promotion import check, outlook
from prolepsis.control.rollout.settings import RolloutSettings, stages
from prolepsis.control.statistics.guardrail import Guardrail
from prolepsis.control.statistics.judge import StageEvidence
from prolepsis.control.statistics.quantiles import QuantileRatio
from prolepsis.core.errors import InvalidParameter
from tests.control.rollout.rollout import SETTINGS, counts, running_in

SLOW = Guardrail(name="slow", metric="latency_ms", measure=QuantileRatio(level=0.99, margin=0.1))


def test_a_stage_that_passed_or_waits_at_a_gate_may_be_promoted() -> None:
    check(running_in(1), counts(1, 0.0), SETTINGS)
    check(replace(running_in(1), phase="gate"), counts(1, 0.0, num_canary=1), SETTINGS)


@pytest.mark.parametrize(
    ("evidence", "missing"),
    [
        (counts(1, 0.0, num_canary=5), "errors has 5 of 20 requests of the canary."),
        (counts(1, 0.0, num_canary=25), "errors is not shown to be within its bound: 0 seen, 0.05 allowed"),
        (counts(1, 0.5), "errors shows harm: 0.5 seen, 0.05 allowed"),
        (counts(1, 0.0, errors=9), "measuring failed"),
        (replace(counts(1, 0.0), num_control=50), "the arms do not have the stated shares"),
        (counts(2, 0.0), "no guardrail decides"),
    ],
)
def test_each_guardrail_says_what_it_lacks(evidence: StageEvidence, missing: str) -> None:
    with pytest.raises(InvalidParameter, match=missing) as refused:
        check(running_in(1), evidence, SETTINGS)
    assert refused.value.param == "force"


@pytest.mark.parametrize(
    ("guardrail", "said"),
    [
        (replace(SLOW, minimum_samples=0), "slow waits for earlier figures of the control"),
        (replace(SLOW, dry_run=True), "no guardrail decides"),
    ],
)
def test_what_cannot_decide_yet_is_said(guardrail: Guardrail, said: str) -> None:
    settings = RolloutSettings(stages=stages((guardrail,), shares=(0.5,)))
    with pytest.raises(InvalidParameter, match=said):
        check(running_in(0), StageEvidence("r1", 0, run=1), settings)


HALF = running_in(2)


def seen(errors: float, number: int, now: float) -> list[str]:
    return outlook(HALF, judgement_on(HALF, counts(2, errors, num_canary=number), SETTINGS), SETTINGS, now)


def test_a_guardrail_at_its_margin_can_neither_pass_nor_fail() -> None:
    [text] = seen(0.05, 200, 60.0)
    assert text.startswith("errors can neither pass nor fail in the 40 s left, after which the rollout is held: ")
    assert text.endswith("with requests like these")


def test_one_that_is_on_its_way_and_one_of_few_requests_say_nothing() -> None:
    assert seen(0.0, 60, 50.0) == []
    assert seen(0.05, 5, 50.0) == []


def test_the_end_of_its_time_comes_first() -> None:
    [text] = seen(0.0, 30, 95.0)
    assert "a judgement takes about" in text


def test_only_a_stage_that_runs_has_an_end() -> None:
    evidence = counts(2, 0.05, num_canary=200)
    held = replace(HALF, phase="held")
    assert outlook(held, judgement_on(held, evidence, SETTINGS), SETTINGS, 60.0) == []
    assert outlook(HALF, None, SETTINGS, 60.0) == []
