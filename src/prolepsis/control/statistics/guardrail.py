"""One guardrail: a metric, how much worse it may be, and its test on the requests so far."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, Self

from prolepsis.control.statistics.arms import Arm, ArmScores, Scores
from prolepsis.control.statistics.means import Better, Contrast, Measure, Ratio, sign_of

Outcome = Literal["pass", "fail", "inconclusive"]
_HALVINGS = 24  # of [-1, 1] when a bound is searched: to 1e-7 of the scale
_FEWER_HALVINGS = 12  # over many spans, as each look takes longer


@dataclass(frozen=True, slots=True, kw_only=True)
class Guardrail:
    """`metric` names a value of requests, `measure` its bound; a dry run is measured and never decisive."""

    name: str
    metric: str
    measure: Measure
    better: Better = "lower"
    minimum_samples: int = 20  # requests of each arm that counts, before anything is decided
    dry_run: bool = False

    def empty(self) -> ArmScores:
        return ArmScores.empty(self.measure.num_points)

    def observe(self, scores: ArmScores, arm: Arm, value: float) -> ArmScores:
        """Return the scores with one more finished request's value, in the metric's unit."""
        return scores.observe(arm, self.measure.score(arm, value), self.measure.excess(arm, value))

    def referring_to(self, reference: float) -> Self:
        """Return the guardrail with the number that `measure.reference_from` gave, here or on another replica."""
        return replace(self, measure=self.measure.referring_to(reference))


@dataclass(frozen=True, slots=True)
class GuardrailResult:
    """The outcome of one guardrail with its numbers. Estimates and bounds are on the scale of `Measure.shown`."""

    name: str
    outcome: Outcome
    dry_run: bool
    estimate: float
    lower: float
    upper: float
    """Each bound holds at all times at once: on the side of harm at the level of failing, else at that of passing."""
    allowed: float  # the margin, on the same scale
    num_canary: int
    num_control: int
    harm_evidence: float  # natural logarithm of the e-value against "at most the allowed harm"
    safety_evidence: float  # natural logarithm of the e-value against "at least the allowed harm"
    is_clipped: bool = False
    """Some values were beyond the range of the test: the estimate is of all, judgement and bounds of clipped values.
    A bound gives way to the estimate where it would leave that out."""


def decide(
    guardrail: Guardrail, scores: Scores, share: float, *, fail_alpha: float, pass_alpha: float
) -> tuple[Outcome, float, float]:
    """Return the outcome and the evidence of harm and of safety (natural logarithms of e-values).

    Fail: harm beyond the margin is shown at level `fail_alpha`. Pass: harm within the margin is shown at level
    `pass_alpha`. Both hold at any time and for any number of looks.
    """
    if not guardrail.measure.ready:
        return "inconclusive", 0.0, 0.0
    contrast = guardrail.measure.contrast(guardrail.better, share)
    harm = sign_of(guardrail.better)
    harm_evidence = contrast.log_evidence(scores, contrast.stakes(harm))
    safety_evidence = contrast.log_evidence(scores, contrast.stakes(-harm))
    if not enough(guardrail, scores.total, contrast):
        return "inconclusive", harm_evidence, safety_evidence
    if harm_evidence >= -math.log(fail_alpha):
        return "fail", harm_evidence, safety_evidence
    if safety_evidence >= -math.log(pass_alpha):
        return "pass", harm_evidence, safety_evidence
    return "inconclusive", harm_evidence, safety_evidence


def enough(guardrail: Guardrail, scores: ArmScores, contrast: Contrast) -> bool:
    """Return whether the arms that count have the least number of requests."""
    counts = (scores.canary.count,) if contrast.ratio == 0.0 else (scores.canary.count, scores.control.count)
    return min(counts) >= guardrail.minimum_samples


def evaluate(
    guardrail: Guardrail, scores: Scores, share: float, *, fail_alpha: float, pass_alpha: float
) -> GuardrailResult:
    outcome, harm, safety = decide(guardrail, scores, share, fail_alpha=fail_alpha, pass_alpha=pass_alpha)
    measure = guardrail.measure
    alphas = (fail_alpha, pass_alpha) if guardrail.better == "lower" else (pass_alpha, fail_alpha)
    contrast = measure.contrast(guardrail.better, share)
    halvings = _HALVINGS if len(scores.spans) == 1 else _FEWER_HALVINGS
    lower, upper = bounds(measure, contrast, scores, lower_alpha=alphas[0], upper_alpha=alphas[1], halvings=halvings)
    total = scores.total
    allowed = contrast.ratio - 1.0 if isinstance(measure, Ratio) else contrast.shift
    is_clipped = total.canary.excess != 0.0 or total.control.excess != 0.0
    estimate = measure.estimate(total.canary.whole_mean, total.control.whole_mean)
    if is_clipped:
        lower, upper = min(lower, estimate), max(upper, estimate)
    return GuardrailResult(
        name=guardrail.name,
        outcome=outcome,
        dry_run=guardrail.dry_run,
        estimate=measure.shown(estimate),
        lower=measure.shown(lower),
        upper=measure.shown(upper),
        allowed=measure.shown(allowed),
        num_canary=total.canary.count,
        num_control=total.control.count,
        harm_evidence=harm,
        safety_evidence=safety,
        is_clipped=is_clipped,
    )


def bounds(
    measure: Measure,
    contrast: Contrast,
    scores: Scores,
    *,
    lower_alpha: float,
    upper_alpha: float,
    halvings: int = _HALVINGS,
) -> tuple[float, float]:
    """Return the confidence sequence of what `measure` varies, on the scale of scores, in [-1, 1].

    Each bound alone holds at all times at once with probability 1 - its alpha. The stakes are those of the test at the
    margin, so a bound passes the margin at the moment when the guardrail decides. Wealth falls (bets on more)
    or rises (bets on less) as the parameter grows, so each bound is found by halving.
    """

    def evidence(sign: int) -> Callable[[float], float]:
        stakes = contrast.stakes(sign)
        return lambda x: measure.vary(contrast, x).log_evidence(scores, stakes)

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
