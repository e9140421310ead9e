"""Verdicts over guardrails: who decides, what is not a failure, and how levels are shared."""

import math

import pytest

from prolepsis.statistics.arms import Arms, Tally
from prolepsis.statistics.guardrail import Guardrail
from prolepsis.statistics.judge import Levels, StageEvidence, judge
from prolepsis.statistics.means import Difference

GOOD = Arms(Tally((1000.0, 10.0), 1010), Tally((1000.0, 10.0), 1010))
BAD = Arms(Tally((500.0, 510.0), 1010), Tally((1000.0, 10.0), 1010))
LITTLE = Arms(Tally((30.0, 0.0), 30), Tally((30.0, 0.0), 30))


def rate(name: str, *, dry_run: bool = False) -> Guardrail:
    return Guardrail(name=name, metric=name, measure=Difference(margin=0.05, baseline=0.01), dry_run=dry_run)


def evidence(arms: dict[str, Arms], consecutive_errors: int = 0, num_control: int = 1010) -> StageEvidence:
    return StageEvidence("r", 0, arms, 1010, num_control, consecutive_errors)


def outcome(guardrails: list[Guardrail], seen: StageEvidence) -> tuple[str, str]:
    verdict = judge(guardrails, seen, share=0.5)
    return verdict.outcome, verdict.reason


def test_all_have_to_pass_and_one_is_enough_to_fail() -> None:
    a, b = rate("a"), rate("b")
    assert outcome([a, b], evidence({"a": GOOD, "b": GOOD})) == ("pass", "within_margins")
    assert outcome([a, b], evidence({"a": GOOD, "b": LITTLE})) == ("inconclusive", "not_enough_evidence")
    assert outcome([a, b], evidence({"a": GOOD})) == ("inconclusive", "not_enough_evidence")
    assert outcome([a, b], evidence({"a": LITTLE, "b": BAD})) == ("fail", "harm")


def test_a_verdict_names_what_failed() -> None:
    verdict = judge(
        [rate("a"), rate("b"), rate("c", dry_run=True)], evidence({"a": GOOD, "b": BAD, "c": BAD}), share=0.5
    )
    assert verdict.failed == ("b",)
    assert [f.name for f in verdict.findings] == ["a", "b", "c"]


def test_a_dry_run_is_measured_and_never_decides() -> None:
    dry = rate("b", dry_run=True)
    assert outcome([rate("a"), dry], evidence({"a": GOOD, "b": BAD})) == ("pass", "within_margins")
    assert outcome([dry], evidence({"b": BAD})) == ("inconclusive", "nothing_decisive")


def test_errors_of_measurement_are_not_failures() -> None:
    seen = evidence({"a": BAD}, consecutive_errors=6)
    assert outcome([rate("a")], seen) == ("inconclusive", "measurement_errors")
    assert outcome([rate("a")], evidence({"a": BAD}, consecutive_errors=5)) == ("fail", "harm")


def test_arms_that_are_not_split_as_stated_are_not_compared() -> None:
    assert outcome([rate("a")], evidence({"a": GOOD}, num_control=1500)) == ("inconclusive", "uneven_arms")


@pytest.mark.parametrize(("num_stages", "num_guardrails"), [(1, 1), (4, 1), (4, 5)])
def test_failing_is_shared_over_guardrails_and_stages_passing_is_not(num_stages: int, num_guardrails: int) -> None:
    """The outcome flips exactly where the evidence of harm passes log(guardrails * stages / level)."""
    guardrails = [rate(str(i)) for i in range(num_guardrails)]
    levels = Levels(rollback=0.05, promotion=0.05, num_stages=num_stages)
    needed = math.log(num_guardrails * num_stages / 0.05)
    outcomes = set()
    for harmed in range(3, 40):
        arms = Arms(Tally((100.0, float(harmed)), 100 + harmed), GOOD.control)
        seen = StageEvidence("r", 0, {g.name: arms for g in guardrails})
        verdict = judge(guardrails, seen, share=0.5, levels=levels)
        assert (verdict.outcome == "fail") == (verdict.findings[0].harm_evidence >= needed)
        assert (verdict.outcome == "pass") == (verdict.findings[0].safety_evidence >= math.log(20.0))
        outcomes.add(verdict.outcome)
    assert {"fail", "inconclusive"} <= outcomes
