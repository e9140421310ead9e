"""Evidence of finished requests, and judgements over guardrails: who decides, what is not a failure, shared levels."""

import math
import random

import pytest
from pydantic import ValidationError

from prolepsis.control.statistics.arms import ArmScores, ScoreHistogram
from prolepsis.control.statistics.guardrail import Guardrail
from prolepsis.control.statistics.judge import Levels, StageEvidence, judge
from prolepsis.control.statistics.means import MeanDifference, Ratio
from prolepsis.control.statistics.quantiles import QuantileRatio

GUARDRAILS = (
    Guardrail(
        name="acceptance", metric="acceptance", measure=MeanDifference(margin=0.1, num_points=9), better="higher"
    ),
    Guardrail(name="cost", metric="cost", measure=Ratio(margin=0.2, high=4.0)),
    Guardrail(name="p95", metric="ms", measure=QuantileRatio(level=0.95, margin=0.1)),
    Guardrail(name="validity", metric="valid", measure=MeanDifference(margin=0.05), better="higher"),
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
    assert set(evidence.scores) == {"acceptance", "cost"}
    assert evidence.num_canary + evidence.num_control == 10


def test_later_measurements_do_not_count_the_request_again() -> None:
    before = stream(requests(10, 0))
    after = before.observe_more(GUARDRAILS, "canary", {"cost": 1.0})
    assert after.scores["cost"].canary.count == before.scores["cost"].canary.count + 1
    assert after.scores["acceptance"] == before.scores["acceptance"]
    assert (after.num_canary, after.num_control) == (before.num_canary, before.num_control)


def test_replicas_together_see_what_one_would() -> None:
    first, second = requests(40, 1), requests(50, 2)
    merged, whole = stream(first) + stream(second), stream(first + second)
    assert (merged.num_canary, merged.num_control) == (whole.num_canary, whole.num_control)
    for ours, theirs in zip(
        judge(GUARDRAILS, merged, share=0.5).guardrails, judge(GUARDRAILS, whole, share=0.5).guardrails, strict=True
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
    assert evidence.scores["acceptance"].canary.count == 1


def test_it_survives_being_stored() -> None:
    evidence = stream(requests(20, 3))
    assert StageEvidence.from_json(evidence.to_json()) == evidence
    with pytest.raises(ValidationError):
        StageEvidence.from_json(b'{"stage": "one"}')


GOOD = ArmScores(ScoreHistogram((1000.0, 10.0), 1010), ScoreHistogram((1000.0, 10.0), 1010))
BAD = ArmScores(ScoreHistogram((500.0, 510.0), 1010), ScoreHistogram((1000.0, 10.0), 1010))
LITTLE = ArmScores(ScoreHistogram((30.0, 0.0), 30), ScoreHistogram((30.0, 0.0), 30))


def rate(name: str, *, dry_run: bool = False) -> Guardrail:
    return Guardrail(name=name, metric=name, measure=MeanDifference(margin=0.05, baseline=0.01), dry_run=dry_run)


def evidence(arms: dict[str, ArmScores], consecutive_errors: int = 0, num_control: int = 1010) -> StageEvidence:
    return StageEvidence("r", 0, arms, 1010, num_control, consecutive_errors)


A, B, DRY = rate("a"), rate("b"), rate("b", dry_run=True)


@pytest.mark.parametrize(
    ("guardrails", "seen", "outcome", "reason", "failed"),
    [
        ([A, B], evidence({"a": GOOD, "b": GOOD}), "pass", "within_margins", ()),
        ([A, B], evidence({"a": GOOD, "b": LITTLE}), "inconclusive", "not_enough_evidence", ()),
        ([A, B], evidence({"a": GOOD}), "inconclusive", "not_enough_evidence", ()),
        ([A, B], evidence({"a": LITTLE, "b": BAD}), "fail", "harm", ("b",)),
        # a dry run is measured and never decides
        ([A, DRY], evidence({"a": GOOD, "b": BAD}), "pass", "within_margins", ()),
        ([DRY], evidence({"b": BAD}), "inconclusive", "nothing_decisive", ()),
        # errors of measurement are no failures, and arms that are not split as stated are not compared
        ([A], evidence({"a": BAD}, consecutive_errors=6), "inconclusive", "measurement_errors", ("a",)),
        ([A], evidence({"a": BAD}, consecutive_errors=5), "fail", "harm", ("a",)),
        ([A], evidence({"a": GOOD}, num_control=1500), "inconclusive", "uneven_arms", ()),
    ],
)
def test_all_have_to_pass_and_one_is_enough_to_fail(
    guardrails: list[Guardrail], seen: StageEvidence, outcome: str, reason: str, failed: tuple[str, ...]
) -> None:
    judgement = judge(guardrails, seen, share=0.5)
    assert (judgement.outcome, judgement.reason, judgement.failed) == (outcome, reason, failed)
    assert [result.name for result in judgement.guardrails] == [guardrail.name for guardrail in guardrails]


@pytest.mark.parametrize(("num_stages", "num_guardrails"), [(1, 1), (4, 1), (4, 5)])
def test_failing_is_shared_over_guardrails_and_stages_passing_is_not(num_stages: int, num_guardrails: int) -> None:
    """The outcome flips exactly where the evidence of harm passes log(guardrails * stages / level)."""
    guardrails = [rate(str(i)) for i in range(num_guardrails)]
    levels = Levels(rollback=0.05, promotion=0.05, num_stages=num_stages)
    needed = math.log(num_guardrails * num_stages / 0.05)
    outcomes = set()
    for harmed in range(3, 40):
        arms = ArmScores(ScoreHistogram((100.0, float(harmed)), 100 + harmed), GOOD.control)
        seen = StageEvidence("r", 0, {g.name: arms for g in guardrails})
        judgement = judge(guardrails, seen, share=0.5, levels=levels)
        assert (judgement.outcome == "fail") == (judgement.guardrails[0].harm_evidence >= needed)
        assert (judgement.outcome == "pass") == (judgement.guardrails[0].safety_evidence >= math.log(20.0))
        outcomes.add(judgement.outcome)
    assert {"fail", "inconclusive"} <= outcomes
