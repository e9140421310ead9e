"""Estimates before a training: acceptance at larger budgets from small runs, and the best depth and vocabulary.

Legend: D tokens of text, a_j acceptance rate of drafted token j, k drafted tokens, c cost of a draft step and v(k) of
verifying k drafts, both in plain steps.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prolepsis.engine.models.provenance import expected_tokens
from prolepsis.training.run_directory import RunDirectory
from prolepsis.training.settings import HeadRecipe, StatedStepCost, TrainSettings

CEILING = 0.95
"""No acceptance rate is predicted above this."""
Points = NDArray[np.float64]

EXPONENTS = tuple(np.linspace(0.05, 1.5, 59).tolist())
DEFAULT_EXPONENT = 0.3
"""Used for two points, which do not determine the exponent."""
MAX_DEPTH = 8


@dataclass(frozen=True, slots=True)
class Curve:
    """a(D) = ceiling - drop * D ** -exponent, D in units of the smallest run."""

    ceiling: float
    drop: float
    exponent: float
    unit: float

    def at(self, tokens: float) -> float:
        """Return the rate predicted at `tokens`, in [0, CEILING]."""
        return float(np.clip(self.ceiling - self.drop * (tokens / self.unit) ** -self.exponent, 0.0, CEILING))


def fit(tokens: Sequence[float], rates: Sequence[float]) -> Curve:
    """Return the curve nearest to the points by least squares; raises `ValueError` for fewer than two points.

    The exponent is searched on a grid; ceiling and drop follow linearly, the ceiling kept in [best rate, CEILING].
    """
    if len(tokens) != len(rates) or len(tokens) < 2:
        raise ValueError(f"{len(tokens)} runs; allowed: two or more")
    unit = min(tokens)
    x, y = np.asarray(tokens, dtype=float) / unit, np.asarray(rates, dtype=float)
    exponents = EXPONENTS if len(tokens) > 2 else (DEFAULT_EXPONENT,)
    fits = [_linear(x, y, exponent, unit) for exponent in exponents]
    errors = [sum((curve.at(t) - rate) ** 2 for t, rate in zip(tokens, rates, strict=True)) for curve in fits]
    return fits[int(np.argmin(errors))]


def _linear(x: Points, y: Points, exponent: float, unit: float) -> Curve:
    basis = x**-exponent
    centred = basis - basis.mean()
    drop = max(0.0, -float(centred @ (y - y.mean())) / max(float(centred @ centred), 1e-12))
    ceiling = float(np.clip(y.mean() + drop * basis.mean(), y.max(), CEILING))
    if drop and ceiling == CEILING:
        drop = max(0.0, float(basis @ (ceiling - y)) / float(basis @ basis))
    return Curve(ceiling, drop, exponent, unit)


@dataclass(frozen=True, slots=True)
class HeadChoice:
    """The best depth and draft vocabulary, with their expected speed."""

    depth: int
    vocab: int
    tokens: float  # expected tokens of a step
    speedup: float


def expected_of(rates: Sequence[float], depth: int) -> float:
    """Return the expected tokens of a step; positions after the last known rate have the same rate."""
    return expected_tokens([*rates, *[rates[-1]] * max(0, depth - len(rates))][:depth])


def gain(rates: Sequence[float], depth: int, cost: StatedStepCost, draft_ms: float) -> float:
    """Return E / (k c + v(k)) at batch 1 (Leviathan et al. 2023, section 3.3); `draft_ms` is k c in milliseconds."""
    return expected_of(rates, depth) * cost.plain_ms / (cost.plain_ms + depth * cost.token_ms + draft_ms)


def choose(
    rates: Sequence[float], trained_vocab: int, coverage: Mapping[int, float], cost: StatedStepCost
) -> HeadChoice:
    """Return the best depth and vocabulary; rates scale with the share of tokens that a vocabulary covers."""
    base = coverage.get(trained_vocab) or max(coverage.values())
    choices = []
    for vocab, share in coverage.items():
        scaled = [min(CEILING, rate * share / base) for rate in rates]
        for depth in range(1, MAX_DEPTH + 1):
            speedup = gain(scaled, depth, cost, depth * cost.drafting(vocab))
            choices.append(HeadChoice(depth, vocab, expected_of(scaled, depth), speedup))
    return max(choices, key=lambda choice: choice.speedup)


POSITIONS = 4
"""Drafted tokens whose acceptance is predicted: deeper ones have too few trials in a small run."""


@dataclass(frozen=True, slots=True)
class TrainingForecast:
    """The expected result of a training on `tokens`."""

    tokens: int
    rates: list[float]
    length: float  # expected tokens of a step with a chain of 3
    choice: HeadChoice


def small_run(directory: RunDirectory, size: int, epochs: float) -> tuple[RunDirectory, HeadRecipe]:
    """Return directory and recipe of a run on the first `size` tokens of the directory's data."""
    small = RunDirectory(directory.root / f"run-{size}")
    small.root.mkdir(exist_ok=True)
    if not small.data.exists():
        small.data.symlink_to(directory.data.resolve(), target_is_directory=True)
    return small, HeadRecipe(max_tokens=size, training=TrainSettings(epochs=epochs))


def curves(runs: Sequence[Mapping[str, Any]]) -> list[Curve]:
    """Return the curve of each drafted position through the results of `runs`."""
    tokens = [float(run["data"]["tokens"]) for run in runs]
    return [fit(tokens, [run["history"][-1]["rates"][j] for run in runs]) for j in range(POSITIONS)]


def predict(runs: Sequence[Mapping[str, Any]], budgets: Sequence[int], cost: StatedStepCost) -> list[TrainingForecast]:
    """Return the expected result of each budget, with the best depth and vocabulary at `cost`."""
    fitted, largest = curves(runs), runs[-1]
    coverage = {int(size): float(share) for size, share in largest["data"]["coverage"].items()}
    predictions = []
    for tokens in budgets:
        rates = [curve.at(tokens) for curve in fitted]
        choice = choose(rates, int(largest["draft_vocab"]), coverage, cost)
        predictions.append(TrainingForecast(tokens, rates, expected_of(rates, 3), choice))
    return predictions


def prediction_check(runs: Sequence[Mapping[str, Any]], finished: Mapping[str, Any]) -> dict[str, object]:
    """Compare the prediction of `runs` for a finished training with its measured acceptance."""
    tokens = int(finished["data"]["tokens"])
    rates = [curve.at(tokens) for curve in curves(runs)]
    measured = [float(rate) for rate in finished["history"][-1]["rates"][:POSITIONS]]
    return {
        "tokens": tokens,
        "predicted": [round(rate, 3) for rate in rates],
        "measured": [round(rate, 3) for rate in measured],
        "chain of 3, predicted": round(expected_of(rates, 3), 3),
        "chain of 3, measured": round(expected_of(measured, 3), 3),
    }
