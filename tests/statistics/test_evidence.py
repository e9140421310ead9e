"""Evidence is made of finished requests, merges like streams, and survives being stored."""

import math
import random

import pytest
from pydantic import ValidationError

from prolepsis.statistics.guardrail import Guardrail
from prolepsis.statistics.judge import StageEvidence, judge
from prolepsis.statistics.means import Difference, Ratio
from prolepsis.statistics.quantiles import QuantileRatio

GUARDRAILS = (
    Guardrail(name="acceptance", metric="acceptance", measure=Difference(margin=0.1, num_knots=9), better="higher"),
    Guardrail(name="cost", metric="cost", measure=Ratio(margin=0.2, high=4.0)),
    Guardrail(name="p95", metric="ms", measure=QuantileRatio(level=0.95, margin=0.1)),
    Guardrail(name="validity", metric="valid", measure=Difference(margin=0.05), better="higher"),
)


def requests(number: int, seed: int) -> list[tuple[str, dict[str, float]]]:
    rng = random.Random(seed)
    return [
        ("canary" if rng.random() < 0.5 else "control", {"acceptance": rng.random(), "cost": rng.random(), "ms": 1.0})
        for _ in range(number)
    ]


def stream(seen: list[tuple[str, dict[str, float]]]) -> StageEvidence:
    evidence = StageEvidence("r", 1)
    for arm, values in seen:
        evidence = evidence.observe(GUARDRAILS, "canary" if arm == "canary" else "control", values)
    return evidence


def test_a_metric_that_does_not_apply_or_is_not_calibrated_is_left_out() -> None:
    evidence = stream(requests(10, 0))
    assert set(evidence.arms) == {"acceptance", "cost"}
    assert evidence.num_canary + evidence.num_control == 10


def test_what_is_measured_later_does_not_count_the_request_again() -> None:
    before = stream(requests(10, 0))
    after = before.observe_more(GUARDRAILS, "canary", {"cost": 1.0})
    assert after.arms["cost"].canary.count == before.arms["cost"].canary.count + 1
    assert after.arms["acceptance"] == before.arms["acceptance"]
    assert (after.num_canary, after.num_control) == (before.num_canary, before.num_control)


def test_replicas_together_see_what_one_would() -> None:
    first, second = requests(40, 1), requests(50, 2)
    merged, whole = stream(first) + stream(second), stream(first + second)
    assert (merged.num_canary, merged.num_control) == (whole.num_canary, whole.num_control)
    for ours, theirs in zip(
        judge(GUARDRAILS, merged, share=0.5).findings, judge(GUARDRAILS, whole, share=0.5).findings, strict=True
    ):
        assert ours.harm_evidence == pytest.approx(theirs.harm_evidence)
        assert ours.safety_evidence == pytest.approx(theirs.safety_evidence)
        assert (ours.outcome, ours.num_canary, ours.num_control) == (
            theirs.outcome,
            theirs.num_canary,
            theirs.num_control,
        )


def test_evidence_of_another_stage_is_not_added() -> None:
    with pytest.raises(AssertionError, match="of one stage"):
        StageEvidence("r", 1) + StageEvidence("r", 2)


def test_failed_measurements_are_counted_until_one_works() -> None:
    evidence = StageEvidence("r", 1)
    for value, expected in ((math.nan, 1), (math.nan, 2), (0.5, 0), (math.nan, 1)):
        evidence = evidence.observe(GUARDRAILS, "canary", {"acceptance": value})
        assert evidence.consecutive_errors == expected
    assert evidence.arms["acceptance"].canary.count == 1


def test_it_survives_being_stored() -> None:
    evidence = stream(requests(20, 3))
    assert StageEvidence.from_json(evidence.to_json()) == evidence
    with pytest.raises(ValidationError):
        StageEvidence.from_json(b'{"stage": "one"}')
