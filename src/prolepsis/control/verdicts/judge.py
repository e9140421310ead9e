"""The verdict over all guardrails of a stage, so that the whole rollout's error rates hold.

False rollback. A rollout fails where any decisive guardrail fails in any of its stages, so each guardrail of each stage
is tested at level rollback / (guardrails x stages): by the union bound a rollout with a harmless canary is rolled back
with probability at most `rollback`.

False promotion. A stage is passed only where every decisive guardrail passes. A canary that one metric forbids needs
that guardrail to pass, which happens with probability at most `promotion` in the first stage where it is so, and no
later stage is reached otherwise. So nothing is divided: each passes at level `promotion` (intersection-union test,
Berger, Technometrics 1982).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from prolepsis.control.verdicts.beta_binomial import log_evidence_against
from prolepsis.control.verdicts.evidence import StageEvidence
from prolepsis.control.verdicts.guardrail import Finding, Guardrail, Outcome, decide, find

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
