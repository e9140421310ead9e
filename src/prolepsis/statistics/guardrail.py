"""One guardrail: what is measured, how much worse it may be, and what the requests so far say about it."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, Self

from prolepsis.statistics.arms import Arm, Arms, History
from prolepsis.statistics.means import Better, Contrast, Difference, Limit, LogRatio, Ratio, sign_of
from prolepsis.statistics.quantiles import QuantileLimit, QuantileRatio

Outcome = Literal["pass", "fail", "inconclusive"]
Measure = Difference | Ratio | LogRatio | Limit | QuantileRatio | QuantileLimit
_HALVINGS = 24  # of [-1, 1] when a bound is searched: to 1e-7 of the scale


@dataclass(frozen=True, slots=True, kw_only=True)
class Guardrail:
    """`metric` names what requests report, `measure` what is asked of it; a dry run is measured, never decisive."""

    name: str
    metric: str
    measure: Measure
    better: Better = "lower"
    minimum_samples: int = 20
    """Of each arm that is looked at, before anything is decided."""
    dry_run: bool = False

    def empty(self) -> Arms:
        """Return arms without requests."""
        return Arms.empty(self.measure.num_knots)

    def observe(self, arms: Arms, arm: Arm, value: float) -> Arms:
        """Return the arms with one more finished request's value, in the metric's unit."""
        return arms.observe(arm, self.measure.score(arm, value))

    def calibrated(self, history: History) -> Self:
        """Return the guardrail for a stage that begins, with what the control showed before it."""
        reference = self.measure.reference_from(history)
        return self if reference is None else self.referring_to(reference)

    def referring_to(self, reference: float) -> Self:
        """Return the guardrail with the number that `measure.reference_from` gave, here or on another replica."""
        return replace(self, measure=self.measure.referring_to(reference))


@dataclass(frozen=True, slots=True)
class Finding:
    """What one guardrail says, with its numbers. Estimates and bounds are as `Measure.shown` says."""

    name: str
    outcome: Outcome
    dry_run: bool
    estimate: float
    lower: float
    upper: float
    """Each holds at all times at once: the bound on the side of harm at the level of failing, the other of passing."""
    allowed: float
    """Where the margin is, on the same scale."""
    num_canary: int
    num_control: int
    harm_evidence: float
    """Natural logarithm of the e-value for more harm than allowed."""
    safety_evidence: float
    """The same for less harm than allowed."""


def decide(
    guardrail: Guardrail, arms: Arms, share: float, *, fail_alpha: float, pass_alpha: float
) -> tuple[Outcome, float, float]:
    """Return the outcome and the evidence of harm and of safety (natural logarithms of e-values).

    Fail: harm beyond the margin is shown at level `fail_alpha`. Pass: that it is within is shown at level `pass_alpha`.
    Both hold at any time and however often they are asked.
    """
    if not guardrail.measure.ready:
        return "inconclusive", 0.0, 0.0
    contrast = guardrail.measure.contrast(guardrail.better, share)
    harm = sign_of(guardrail.better)
    harm_evidence = contrast.log_evidence(arms, contrast.stakes(harm))
    safety_evidence = contrast.log_evidence(arms, contrast.stakes(-harm))
    if not enough(guardrail, arms, contrast):
        return "inconclusive", harm_evidence, safety_evidence
    if harm_evidence >= -math.log(fail_alpha):
        return "fail", harm_evidence, safety_evidence
    if safety_evidence >= -math.log(pass_alpha):
        return "pass", harm_evidence, safety_evidence
    return "inconclusive", harm_evidence, safety_evidence


def enough(guardrail: Guardrail, arms: Arms, contrast: Contrast) -> bool:
    """Return whether the arms that are looked at have the least number of requests."""
    counts = (arms.canary.count,) if contrast.ratio == 0.0 else (arms.canary.count, arms.control.count)
    return min(counts) >= guardrail.minimum_samples


def find(guardrail: Guardrail, arms: Arms, share: float, *, fail_alpha: float, pass_alpha: float) -> Finding:
    """Return the outcome with its numbers, for the record."""
    outcome, harm, safety = decide(guardrail, arms, share, fail_alpha=fail_alpha, pass_alpha=pass_alpha)
    measure = guardrail.measure
    alphas = (fail_alpha, pass_alpha) if guardrail.better == "lower" else (pass_alpha, fail_alpha)
    contrast = measure.contrast(guardrail.better, share)
    lower, upper = bounds(measure, contrast, arms, lower_alpha=alphas[0], upper_alpha=alphas[1])
    allowed = contrast.ratio - 1.0 if isinstance(measure, Ratio) else contrast.shift
    return Finding(
        name=guardrail.name,
        outcome=outcome,
        dry_run=guardrail.dry_run,
        estimate=measure.shown(measure.estimate(arms.canary.mean, arms.control.mean)),
        lower=measure.shown(lower),
        upper=measure.shown(upper),
        allowed=measure.shown(allowed),
        num_canary=arms.canary.count,
        num_control=arms.control.count,
        harm_evidence=harm,
        safety_evidence=safety,
    )


def bounds(
    measure: Measure,
    contrast: Contrast,
    arms: Arms,
    *,
    lower_alpha: float,
    upper_alpha: float,
    halvings: int = _HALVINGS,
) -> tuple[float, float]:
    """Return the confidence sequence of what `measure` varies, on the scale of scores, in [-1, 1].

    Each bound alone holds at all times at once with probability 1 - its alpha. The stakes are those of the test at the
    margin, so a bound passes the margin in the very moment in which the guardrail decides. Wealth falls (bets on more)
    or rises (bets on less) as the parameter grows, so each bound is found by halving.
    """

    def evidence(sign: int) -> Callable[[float], float]:
        stakes = contrast.stakes(sign)
        return lambda x: measure.vary(contrast, x).log_evidence(arms, stakes)

    more, less = evidence(1), evidence(-1)
    lower = _edge(lambda x: more(x) >= -math.log(lower_alpha), halvings)
    upper = -_edge(lambda x: less(-x) >= -math.log(upper_alpha), halvings)
    return lower, upper


def _edge(refused: Callable[[float], bool], halvings: int) -> float:
    """Return about the largest x in [-1, 1] that is refused, -1 where none is; what is below a refused x is, too."""
    low, high = -1.0, 1.0
    for _ in range(halvings):
        middle = (low + high) / 2
        low, high = (middle, high) if refused(middle) else (low, middle)
    return low
