"""What the finished requests of one stage showed: the recorded counters that a verdict is made of."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Self

from pydantic import TypeAdapter

from prolepsis.statistics.arms import Arm, Arms, log_evidence_against
from prolepsis.statistics.guardrail import Finding, Guardrail, Outcome, decide, find


@dataclass(frozen=True, slots=True)
class StageEvidence:
    """Arms by guardrail name; evidence of replicas about one stage is added."""

    rollout_id: str
    stage: int
    arms: Mapping[str, Arms] = field(default_factory=dict)
    num_canary: int = 0
    num_control: int = 0
    """Requests of the stage that finished, by arm, whatever was measured of them."""
    consecutive_errors: int = 0
    """Requests with a measurement that failed since the last without; of the replica that has most."""
    run: int = 0
    """Which start of the rollout the stage belongs to."""

    def belongs_to(self, rollout_id: str, run: int, stage: int) -> bool:
        return (self.rollout_id, self.run, self.stage) == (rollout_id, run, stage)

    def observe(self, guardrails: Sequence[Guardrail], arm: Arm, values: Mapping[str, float]) -> Self:
        """Return the evidence with one more finished request, given its values by metric.

        A metric that does not apply to the request is left out; NaN says that measuring it failed.
        """
        arms = dict(self.arms)
        for guardrail in guardrails:
            value = values.get(guardrail.metric)
            if value is not None and not math.isnan(value) and guardrail.measure.ready:
                arms[guardrail.name] = guardrail.observe(arms.get(guardrail.name, guardrail.empty()), arm, value)
        failed = any(math.isnan(value) for value in values.values())
        return replace(
            self,
            arms=arms,
            num_canary=self.num_canary + (arm == "canary"),
            num_control=self.num_control + (arm == "control"),
            consecutive_errors=self.consecutive_errors + 1 if failed else 0,
        )

    def observe_more(self, guardrails: Sequence[Guardrail], arm: Arm, values: Mapping[str, float]) -> Self:
        """Return the evidence with what was measured later of a request that is counted already."""
        more = self.observe(guardrails, arm, values)
        return replace(self, arms=more.arms)

    def __add__(self, other: Self) -> Self:
        assert other.belongs_to(self.rollout_id, self.run, self.stage), "evidence of one stage is added"
        merged = dict(self.arms)
        for name, arms in other.arms.items():
            merged[name] = merged[name] + arms if name in merged else arms
        return replace(
            self,
            arms=merged,
            num_canary=self.num_canary + other.num_canary,
            num_control=self.num_control + other.num_control,
            consecutive_errors=max(self.consecutive_errors, other.consecutive_errors),
        )

    def to_json(self) -> bytes:
        return _EVIDENCE.dump_json(self)

    @staticmethod
    def from_json(text: bytes | str) -> "StageEvidence":
        """Return the stored evidence; raises pydantic's ValidationError where the text is not one."""
        return _EVIDENCE.validate_json(text)


_EVIDENCE = TypeAdapter(StageEvidence)


Reason = Literal[
    "harm",  # a decisive guardrail failed
    "within_margins",  # all decisive guardrails passed
    "not_enough_evidence",
    "measurement_errors",  # too many in a row: what is measured cannot be trusted, which is not a failure
    "uneven_arms",  # requests do not come to the arms in the stated shares, so they cannot be compared
    "nothing_decisive",  # there is no guardrail that may decide
]
UNEVEN_ALPHA = 0.001
"""Level at which arms are taken for uneven."""


@dataclass(frozen=True, slots=True)
class Levels:
    """Highest probabilities, over a whole rollout, of rolling a harmless canary back and of promoting a harmful one."""

    rollback: float = 0.05
    promotion: float = 0.05
    num_stages: int = 1
    """Stages with verdicts that the rollout has in all."""


@dataclass(frozen=True, slots=True)
class Verdict:
    outcome: Outcome
    reason: Reason
    findings: tuple[Finding, ...] = ()
    """Of all guardrails, dry runs too."""

    @property
    def failed(self) -> tuple[str, ...]:
        """Names of the decisive guardrails that failed."""
        return tuple(f.name for f in self.findings if f.outcome == "fail" and not f.dry_run)


def judge(
    guardrails: Sequence[Guardrail],
    evidence: StageEvidence,
    *,
    share: float,
    levels: Levels | None = None,
    consecutive_error_limit: int = 5,
) -> Verdict:
    """Return the verdict on a stage whose requests went to the canary with probability `share` (ignored by limits)."""
    levels = levels or Levels()
    fail_alpha = _fail_alpha(guardrails, levels)
    findings = tuple(
        find(g, evidence.arms.get(g.name, g.empty()), share, fail_alpha=fail_alpha, pass_alpha=levels.promotion)
        for g in guardrails
    )
    unfit = _unfit(evidence, share, consecutive_error_limit)
    return Verdict(*(unfit or _together([f.outcome for f in findings if not f.dry_run])), findings)


def outcome_of(
    guardrails: Sequence[Guardrail],
    evidence: StageEvidence,
    *,
    share: float,
    levels: Levels | None = None,
    consecutive_error_limit: int = 5,
) -> tuple[Outcome, Reason]:
    """Return what `judge` says without its numbers, in a tenth of the time."""
    levels = levels or Levels()
    fail_alpha = _fail_alpha(guardrails, levels)
    outcomes = [
        decide(g, evidence.arms.get(g.name, g.empty()), share, fail_alpha=fail_alpha, pass_alpha=levels.promotion)[0]
        for g in guardrails
        if not g.dry_run
    ]
    return _unfit(evidence, share, consecutive_error_limit) or _together(outcomes)


def _fail_alpha(guardrails: Sequence[Guardrail], levels: Levels) -> float:
    decisive = sum(not g.dry_run for g in guardrails)
    return levels.rollback / (max(1, decisive) * levels.num_stages)


def _unfit(evidence: StageEvidence, share: float, consecutive_error_limit: int) -> tuple[Outcome, Reason] | None:
    """Return why a verdict is withheld whatever the guardrails say, None where it is not."""
    if evidence.consecutive_errors > consecutive_error_limit:
        return "inconclusive", "measurement_errors"
    return ("inconclusive", "uneven_arms") if _uneven(evidence, share) else None


def _together(outcomes: Sequence[Outcome]) -> tuple[Outcome, Reason]:
    if not outcomes:
        return "inconclusive", "nothing_decisive"
    if "fail" in outcomes:
        return "fail", "harm"
    if all(outcome == "pass" for outcome in outcomes):
        return "pass", "within_margins"
    return "inconclusive", "not_enough_evidence"


def _uneven(evidence: StageEvidence, share: float) -> bool:
    """Return whether the arms' sizes contradict the stated share, by a test valid at any time (level 0.001)."""
    total = evidence.num_canary + evidence.num_control
    if not 0.0 < share < 1.0:
        return False
    return log_evidence_against(share, evidence.num_canary, total) >= -math.log(UNEVEN_ALPHA)
