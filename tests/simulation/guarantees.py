"""Simulated rollouts that are judged after every request: whole streams at once, checked against `judge` itself.

Each rollout has canary stages with eight guardrails. The arithmetic is that of `judge` on arrays; one rollout in fifty
is replayed through `judge` and must decide the same at the same request.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from prolepsis.control.statistics.arms import WIDTH, Histogram, log_evidence_against
from prolepsis.control.statistics.guardrail import Guardrail, Outcome
from prolepsis.control.statistics.judge import UNEVEN_ALPHA, Levels, StageEvidence, judge
from prolepsis.control.statistics.means import Limit, MeanDifference, Ratio, sign_of
from prolepsis.control.statistics.quantiles import QuantileRatio
from tests.simulation.rollout_traffic import Damage, Traffic, Values

SHARES = (0.2, 0.35, 0.5)
LONGEST_STAGE = 10_000
BATCH = 1000
HISTORY = 1000
"""Requests of the control before the first stage, from which guardrails are calibrated."""
REPLAYED = 50
LEVELS = Levels(num_stages=len(SHARES))
GUARDRAILS = (
    Guardrail(
        name="acceptance", metric="acceptance", better="higher", measure=MeanDifference(margin=0.05, num_points=33)
    ),
    Guardrail(name="per_token_p50", metric="ms_per_token", measure=QuantileRatio(level=0.5, margin=0.10)),
    Guardrail(name="per_token_p95", metric="ms_per_token", measure=QuantileRatio(level=0.95, margin=0.20)),
    Guardrail(name="end_to_end_p95", metric="end_to_end_ms", measure=QuantileRatio(level=0.95, margin=0.35)),
    Guardrail(name="cost", metric="cost_per_token", measure=Ratio(margin=0.10, high=8.0)),
    Guardrail(name="errors", metric="error", measure=MeanDifference(margin=0.02)),
    Guardrail(name="validity", metric="valid", better="higher", measure=MeanDifference(margin=0.03)),
    Guardrail(name="correctness", metric="mismatch", measure=Limit(limit=0.03)),
)


@dataclass(frozen=True, slots=True)
class Stage:
    """How one simulated stage ended."""

    outcome: Outcome
    num_requests: int
    num_canary: int


def simulate(
    number: int,
    seed: int,
    damage: Damage,
    *,
    shares: Sequence[float] = SHARES,
    requests_per_key: int = 1,
    by_tenant: bool = False,
) -> list[list[Stage]]:
    """Return the stages that each of `number` rollouts went through."""
    rollouts = []
    for i in range(number):
        traffic = Traffic(seed * 1_000_003 + i, requests_per_key=requests_per_key, by_tenant=by_tenant)
        guardrails = calibrated(traffic)
        done = replace(damage, tail_above=_tail(guardrails))
        stages: list[Stage] = []
        while len(stages) < len(shares) and (not stages or stages[-1].outcome == "pass"):
            stages.append(run_stage(traffic, guardrails, shares[len(stages)], done, replay=i % REPLAYED == 0))
        rollouts.append(stages)
    return rollouts


def calibrated(traffic: Traffic, guardrails: Sequence[Guardrail] = GUARDRAILS) -> tuple[Guardrail, ...]:
    """Return the guardrails with what the control showed before the canary's first request."""
    _, values = traffic.batch(HISTORY, 0.0, Damage())
    references = ((g, g.measure.reference_from(_history(values[g.metric]))) for g in guardrails)
    return tuple(g if reference is None else g.referring_to(reference) for g, reference in references)


def _tail(guardrails: Sequence[Guardrail]) -> float:
    """Return a time per token between the limits of the median and of p95: what is slower above it harms p95 only."""
    measures = {g.name: g.measure for g in guardrails}
    median, p95 = measures["per_token_p50"], measures["per_token_p95"]
    assert isinstance(median, QuantileRatio) and isinstance(p95, QuantileRatio), "as in GUARDRAILS"  # noqa: PT018
    assert median.reference is not None and p95.reference is not None, "calibrated"  # noqa: PT018
    return math.sqrt(median.reference * (1.0 + median.margin) * p95.reference)


def _history(values: Values) -> Histogram:
    """Return the history that observing the values one by one makes."""
    values = values[~np.isnan(values)]
    bins = np.ceil(np.log(np.maximum(values, 1e-9)) / math.log(WIDTH)).astype(np.int64)
    counts = dict(zip(*(column.tolist() for column in np.unique(bins, return_counts=True)), strict=True))
    return Histogram(counts, len(values), float(values.sum()))


def run_stage(
    traffic: Traffic,
    guardrails: Sequence[Guardrail],
    share: float,
    damage: Damage,
    *,
    replay: bool,
    levels: Levels = LEVELS,
) -> Stage:
    """Return how a stage ends that is judged after each request."""
    streams = [Stream(g, share, levels.fail_alpha(guardrails)) for g in guardrails]
    seen: list[tuple[NDArray[np.bool_], dict[str, Values]]] = []
    number = on_canary = 0
    while number < LONGEST_STAGE:
        canary, values = traffic.batch(BATCH, share, damage)
        seen.append((canary, dict(values)))
        sides = [s.extend(canary, values[s.guardrail.metric]) for s in streams]
        fail = np.any([fails for fails, _ in sides], axis=0)
        decided = fail | np.all([passes for _, passes in sides], axis=0)
        if decided.any():
            at = int(decided.argmax())
            stage = _stage(
                "fail" if fail[at] else "pass", number + at + 1, on_canary + int(canary[: at + 1].sum()), share
            )
            break
        number, on_canary = number + BATCH, on_canary + int(canary.sum())
    else:
        stage = Stage("inconclusive", number, on_canary)
    if replay:
        check_replay(seen, guardrails, share, stage, levels)
    return stage


def _stage(outcome: Outcome, num_requests: int, num_canary: int, share: float) -> Stage:
    """Return how a stage ends, as inconclusive where the arms are uneven: it is held then."""
    uneven = log_evidence_against(share, num_canary, num_requests) >= -math.log(UNEVEN_ALPHA)
    return Stage("inconclusive" if uneven else outcome, num_requests, num_canary)


class Stream:
    """One guardrail over a stream: `decide` of prolepsis.control.statistics.guardrail, for every prefix at once."""

    def __init__(self, guardrail: Guardrail, share: float, fail_alpha: float = LEVELS.fail_alpha(GUARDRAILS)) -> None:
        self.guardrail = guardrail
        self._contrast = guardrail.measure.contrast(guardrail.better, share)
        harm = sign_of(guardrail.better)
        self._sides = [
            (self._log_factors(self._contrast.stakes(harm)), -math.log(fail_alpha)),
            (self._log_factors(self._contrast.stakes(-harm)), -math.log(LEVELS.promotion)),
        ]
        self._weights = np.zeros((2 * guardrail.measure.num_points, 1))
        self._counts = np.zeros((2, 1))

    def extend(self, canary: NDArray[np.bool_], values: Values) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return, after each request, whether the guardrail fails and whether it passes [number]."""
        here = ~np.isnan(values)
        counts = self._counts + np.cumsum(np.stack([canary & here, ~canary & here]), axis=1)
        self._counts = counts[:, -1:]
        looked_at = counts if self._contrast.ratio else counts[:1]
        enough = looked_at.min(axis=0) >= self.guardrail.minimum_samples
        weights = self._weights + np.cumsum(self._on_knots(canary, values, here), axis=1)
        self._weights = weights[:, -1:]
        fails, passes = (enough & _reached(factors @ weights, needed) for factors, needed in self._sides)
        return fails, passes & ~fails

    def _on_knots(self, canary: NDArray[np.bool_], values: Values, here: NDArray[np.bool_]) -> Values:
        """Return what each request adds to the histograms of canary and control [2 * points, number]."""
        num_points = self.guardrail.measure.num_points
        place = self._scores(canary, values) * (num_points - 1)
        lower = np.minimum(place.astype(np.int64), num_points - 2)
        added = np.zeros((2 * num_points, len(values)))
        column, row = np.arange(len(values)), lower + np.where(canary, 0, num_points)
        added[row, column] = (1.0 - (place - lower)) * here
        added[row + 1, column] = (place - lower) * here
        return added

    def _scores(self, canary: NDArray[np.bool_], values: Values) -> Values:
        measure = self.guardrail.measure
        if isinstance(measure, QuantileRatio):
            assert measure.reference is not None, "calibrated"
            above = measure.reference * np.where(canary, 1.0 + measure.margin, 1.0)
            return (values > above).astype(np.float64)
        high = measure.high if isinstance(measure, Ratio) else 1.0
        assert high is not None, "calibrated"
        return np.clip(np.nan_to_num(values) / high, 0.0, 1.0)

    def _log_factors(self, stakes: Sequence[float]) -> Values:
        """Return the logarithms of the factors at the points of canary and control [stakes, 2 * points]."""
        c = self._contrast
        on_canary, on_control = c.factors
        points = np.linspace(0.0, 1.0, self.guardrail.measure.num_points)
        stake = np.array(stakes)[:, None]
        centre = c.centre if c.ratio else 0.0
        up = np.log(1.0 + stake * on_canary * (points - c.shift - centre))
        down = np.log(1.0 - stake * on_control * (c.ratio * points - centre))
        return np.concatenate([up, down], axis=1)


def _reached(wealth: Values, needed: float) -> NDArray[np.bool_]:
    """Return where the mean wealth, given as logarithms [stakes, number], is at least exp(needed)."""
    best = wealth.max(axis=0)
    if not (best >= needed).any():  # the mean is at most the largest
        return np.zeros(len(best), dtype=np.bool_)
    return np.asarray(best + np.log(np.exp(wealth - best).mean(axis=0)) >= needed)


def check_replay(
    seen: Sequence[tuple[NDArray[np.bool_], dict[str, Values]]],
    guardrails: Sequence[Guardrail],
    share: float,
    stage: Stage,
    levels: Levels,
) -> None:
    """Assert that `judge` decides as the stream did: the same at the same request, and nothing just before."""
    evidence = StageEvidence("simulated", 0)
    number = 0
    for canary, values in seen:
        for j in range(len(canary)):
            row = {name: float(column[j]) for name, column in values.items() if not math.isnan(column[j])}
            evidence = evidence.observe(guardrails, "canary" if canary[j] else "control", row)
            number += 1
            if number == stage.num_requests - 1:
                judgement = judge(guardrails, evidence, share=share, levels=levels)
                assert judgement.outcome == "inconclusive", "judge decided before"
            if number == stage.num_requests:
                judgement = judge(guardrails, evidence, share=share, levels=levels)
                assert judgement.outcome == stage.outcome, "judge decided otherwise"
                return


def clopper_pearson(hits: int, number: int, alpha: float = 0.05) -> tuple[float, float]:
    """Return the exact interval of a probability (Clopper and Pearson, Biometrika 1934)."""

    def root(tail: Callable[[float], float]) -> float:
        low, high = 0.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if tail(middle) < alpha / 2 else (low, middle)
        return low

    lower = root(lambda p: 1.0 - _at_most(hits - 1, number, p)) if hits else 0.0
    upper = 1.0 - root(lambda q: _at_most(hits, number, 1.0 - q)) if hits < number else 1.0
    return lower, upper


def _at_most(hits: int, number: int, p: float) -> float:
    """Return P(binomial <= hits)."""
    if p <= 0.0 or p >= 1.0:
        return 1.0 if p <= 0.0 or hits >= number else 0.0
    logs = [
        math.lgamma(number + 1)
        - math.lgamma(k + 1)
        - math.lgamma(number - k + 1)
        + k * math.log(p)
        + (number - k) * math.log1p(-p)
        for k in range(hits + 1)
    ]
    return min(1.0, sum(math.exp(x) for x in logs))
