"""Small runs on part of the data, what they predict, and how it compares with what then happened."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prolepsis.train.head_training import HeadPlan
from prolepsis.train.plan import Choice, Curve, StepCost, choose, expected_tokens, fit
from prolepsis.train.trainer import TrainSettings
from prolepsis.train.workplace import Workplace

POSITIONS = 4
"""Drafted tokens whose acceptance is predicted: deeper ones have too few trials in a small run."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a training on so many tokens should bring."""

    tokens: int
    rates: list[float]
    length: float
    """Expected tokens of a step with a chain of 3."""
    choice: Choice


def small_run(workplace: Workplace, size: int, epochs: float) -> tuple[Workplace, HeadPlan]:
    """Return the folder and plan of a run on the first `size` tokens of the folder's data."""
    place = Workplace(workplace.root / f"run-{size}")
    place.root.mkdir(exist_ok=True)
    if not place.data.exists():
        place.data.symlink_to(workplace.data.resolve(), target_is_directory=True)
    return place, HeadPlan(max_tokens=size, settings=TrainSettings(epochs=epochs))


def curves(runs: Sequence[Mapping[str, Any]]) -> list[Curve]:
    """Return the curve of each drafted position through the results of `runs`."""
    tokens = [float(run["data"]["tokens"]) for run in runs]
    return [fit(tokens, [run["history"][-1]["rates"][j] for run in runs]) for j in range(POSITIONS)]


def predict(runs: Sequence[Mapping[str, Any]], budgets: Sequence[int], cost: StepCost) -> list[Prediction]:
    """Return what each budget should bring, and the best depth and vocabulary at `cost`."""
    fitted, largest = curves(runs), runs[-1]
    coverage = {int(size): float(share) for size, share in largest["data"]["coverage"].items()}
    predictions = []
    for tokens in budgets:
        rates = [curve.at(tokens) for curve in fitted]
        choice = choose(rates, int(largest["draft_vocab"]), coverage, cost)
        predictions.append(Prediction(tokens, rates, expected_tokens(rates, 3), choice))
    return predictions


def prediction_check(runs: Sequence[Mapping[str, Any]], finished: Mapping[str, Any]) -> dict[str, object]:
    """Compare what `runs` predict for a finished training with what it measured."""
    tokens = int(finished["data"]["tokens"])
    rates = [curve.at(tokens) for curve in curves(runs)]
    measured = [float(rate) for rate in finished["history"][-1]["rates"][:POSITIONS]]
    return {
        "tokens": tokens,
        "predicted": [round(rate, 3) for rate in rates],
        "measured": [round(rate, 3) for rate in measured],
        "chain of 3, predicted": round(expected_tokens(rates, 3), 3),
        "chain of 3, measured": round(expected_tokens(measured, 3), 3),
    }
