"""The judgement on a stage: the evidence of its finished requests, judged over all guardrails.

The error rates of the whole rollout hold, by two arguments.

False rollback. A rollout fails if any decisive guardrail fails in any of its stages, so each guardrail of each stage
is tested at level rollback / (guardrails x stages): by the union bound a rollout with a harmless canary is rolled back
with probability at most `rollback`.

False promotion. A stage is passed only if every decisive guardrail passes. If one metric forbids a canary, that
guardrail has to pass all the same, which happens with probability at most `promotion` in the first stage where the
metric forbids it; no later stage is reached otherwise. So nothing is divided: each passes at level `promotion`
(intersection-union test, Berger, Technometrics 1982).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, Self

from prolepsis.control.statistics.arms import Arm, ArmScores, Scores, log_evidence_against
from prolepsis.control.statistics.guardrail import Guardrail, GuardrailResult, Outcome, decide, evaluate
from prolepsis.core.json_value import JsonValue


class Evidence(Protocol):
    """Evidence of finished requests: of a stage (`StageEvidence`), or recent ones (`window.WindowEvidence`)."""

    @property
    def num_canary(self) -> int: ...

    @property
    def num_control(self) -> int: ...

    @property
    def consecutive_errors(self) -> int: ...

    @property
    def sizes(self) -> Sequence[tuple[int, int]]:
        """Requests of canary and control by span of time, oldest first."""

    def scores_of(self, guardrail: Guardrail) -> Scores: ...

    def belongs_to(self, rollout_id: str, run: int, stage: int) -> bool: ...


@dataclass(frozen=True, slots=True)
class StageEvidence(JsonValue):
    """Scores by guardrail; the evidence of replicas about one stage is added."""

    rollout_id: str
    stage: int
    scores: Mapping[str, ArmScores] = field(default_factory=dict)
    num_canary: int = 0
    num_control: int = 0  # requests of the stage that finished, by arm, with or without measured values
    consecutive_errors: int = 0
    """Requests in a row with a measurement that failed; the largest number of any replica."""
    run: int = 0  # the start of the rollout that the stage belongs to
    weights: str = ""
    """Versions of the draft heads that the requests used; other ones have evidence of their own."""

    def belongs_to(self, rollout_id: str, run: int, stage: int) -> bool:
        return (self.rollout_id, self.run, self.stage) == (rollout_id, run, stage)

    @property
    def sizes(self) -> Sequence[tuple[int, int]]:
        return ((self.num_canary, self.num_control),)

    def scores_of(self, guardrail: Guardrail) -> ArmScores:
        return self.scores.get(guardrail.name, guardrail.empty())

    def observe(self, guardrails: Sequence[Guardrail], arm: Arm, values: Mapping[str, float]) -> Self:
        """Return the evidence with one more finished request, given its values by metric.

        A metric that does not apply to the request is absent; NaN means that measuring it failed.
        """
        failed = any(math.isnan(value) for value in values.values())
        return replace(
            self.observe_more(guardrails, arm, values),
            num_canary=self.num_canary + (arm == "canary"),
            num_control=self.num_control + (arm == "control"),
            consecutive_errors=self.consecutive_errors + 1 if failed else 0,
        )

    def observe_more(self, guardrails: Sequence[Guardrail], arm: Arm, values: Mapping[str, float]) -> Self:
        """Return the evidence with values of a request that is counted already."""
        scores = dict(self.scores)
        for guardrail in guardrails:
            value = values.get(guardrail.metric)
            if value is not None and not math.isnan(value) and guardrail.measure.ready:
                scores[guardrail.name] = guardrail.observe(scores.get(guardrail.name, guardrail.empty()), arm, value)
        return replace(self, scores=scores)

    def __add__(self, other: Self) -> Self:
        assert other.belongs_to(self.rollout_id, self.run, self.stage), "evidence of one stage is added"
        merged = dict(self.scores)
        for name, scores in other.scores.items():
            merged[name] = merged[name] + scores if name in merged else scores
        return replace(
            self,
            scores=merged,
            num_canary=self.num_canary + other.num_canary,
            num_control=self.num_control + other.num_control,
            consecutive_errors=max(self.consecutive_errors, other.consecutive_errors),
        )


Reason = Literal[
    "harm",  # a decisive guardrail failed
    "within_margins",  # all decisive guardrails passed
    "not_enough_evidence",
    "measurement_errors",  # too many in a row: the measurements cannot be trusted, which is not a failure
    "uneven_arms",  # the arms' sizes contradict the stated shares, so the arms cannot be compared
    "nothing_decisive",  # no guardrail may decide
]
UNEVEN_ALPHA = 0.001  # level at which arms are considered uneven
_MOST_ERRORS = 5  # measurements in a row that may fail


@dataclass(frozen=True, slots=True)
class Levels:
    """Highest probabilities, over a whole rollout, of rolling a harmless canary back and of promoting a harmful one."""

    rollback: float = 0.05
    promotion: float = 0.05
    num_stages: int = 1  # stages with judgements in the whole rollout
    num_starts: int = 1  # spans with which bets begin in a stage, in the time for which the levels hold

    def fail_alpha(self, guardrails: Sequence[Guardrail]) -> float:
        """Return the level of each guardrail's test for harm."""
        decisive = sum(not g.dry_run for g in guardrails)
        return self.rollback / (max(1, decisive) * self.num_stages * self.num_starts)

    @property
    def pass_alpha(self) -> float:
        return self.promotion / self.num_starts


@dataclass(frozen=True, slots=True)
class Judgement:
    """The judgement of a rollout's stage."""

    outcome: Outcome
    reason: Reason
    guardrails: tuple[GuardrailResult, ...] = ()  # results of all guardrails, including dry runs

    @property
    def failed(self) -> tuple[str, ...]:
        """Names of the decisive guardrails that failed."""
        return tuple(f.name for f in self.guardrails if f.outcome == "fail" and not f.dry_run)


_ONE_STAGE = Levels()


def judge(
    guardrails: Sequence[Guardrail], evidence: Evidence, *, share: float, levels: Levels = _ONE_STAGE
) -> Judgement:
    """Return the judgement on a stage of whose requests the canary got `share` (ignored by limits)."""
    alphas = {"fail_alpha": levels.fail_alpha(guardrails), "pass_alpha": levels.pass_alpha}
    results = tuple(evaluate(g, evidence.scores_of(g), share, **alphas) for g in guardrails)
    outcomes = [result.outcome for result in results]
    return Judgement(*_combined(guardrails, outcomes, _unfit(evidence, share, levels)), results)


def outcome_of(
    guardrails: Sequence[Guardrail], evidence: Evidence, *, share: float, levels: Levels = _ONE_STAGE
) -> tuple[Outcome, Reason]:
    """Return the outcome and reason of `judge` without its numbers, in a tenth of the time."""
    alphas = {"fail_alpha": levels.fail_alpha(guardrails), "pass_alpha": levels.pass_alpha}
    outcomes = [decide(g, evidence.scores_of(g), share, **alphas)[0] for g in guardrails]
    return _combined(guardrails, outcomes, _unfit(evidence, share, levels))


def _unfit(evidence: Evidence, share: float, levels: Levels) -> Reason | None:
    """Return why the arms cannot be compared; None if they can."""
    if evidence.consecutive_errors > _MOST_ERRORS:
        return "measurement_errors"
    return "uneven_arms" if _uneven(evidence.sizes, share, UNEVEN_ALPHA / levels.num_starts) else None


def _combined(
    guardrails: Sequence[Guardrail], outcomes: Sequence[Outcome], unfit: Reason | None
) -> tuple[Outcome, Reason]:
    """Combine the outcomes of the guardrails that decide; uneven arms leave limits, which look at one arm only."""
    decisive = [(g, outcome) for g, outcome in zip(guardrails, outcomes, strict=True) if not g.dry_run]
    if unfit is not None:
        harmed = any(outcome == "fail" and not g.measure.has_control for g, outcome in decisive)
        return ("fail", "harm") if harmed and unfit == "uneven_arms" else ("inconclusive", unfit)
    if not decisive:
        return "inconclusive", "nothing_decisive"
    if any(outcome == "fail" for _, outcome in decisive):
        return "fail", "harm"
    if all(outcome == "pass" for _, outcome in decisive):
        return "pass", "within_margins"
    return "inconclusive", "not_enough_evidence"


def _uneven(sizes: Sequence[tuple[int, int]], share: float, alpha: float) -> bool:
    """Return whether the arms' sizes contradict the stated share, by a test valid at any time that begins each span."""
    if not 0.0 < share < 1.0:
        return False
    evidence: list[float] = []
    num_canary = num_control = 0
    for canary, control in reversed(sizes):
        num_canary, num_control = num_canary + canary, num_control + control
        evidence.append(log_evidence_against(share, num_canary, num_canary + num_control))
    best = max(evidence, default=-math.inf)
    return best + math.log(sum(math.exp(value - best) for value in evidence) or 1.0) >= -math.log(alpha)
