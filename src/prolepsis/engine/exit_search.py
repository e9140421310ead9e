"""Finds the layer at which drafting with the target's own first layers pays most, or shows that it pays nowhere.

Acceptance is counted on texts that the target continues itself (`engine.calibration`), the cost of a level and of a
pass is measured beside it; both together predict the speed-up (ALGORITHMS 4.1).
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from prolepsis.core.requests import SamplingParams
from prolepsis.engine.calibration import MAX_DEPTH, Calibration
from prolepsis.engine.profile import curve_file
from prolepsis.models.protocol import TargetModel
from prolepsis.models.targets.early_exit import make_exit

WORTH_IT = 1.05
"""A predicted speed-up below this is noise: ALGORITHMS 4.2."""
_SPREAD = 12  # the layers tried are so many parts of the model apart


@dataclass(frozen=True, slots=True)
class ExitFigures:
    """What one exit would bring, one sample at a time."""

    num_layers: int
    survivals: tuple[float, ...]
    """Share of places where the first 1, 2, ... drafted tokens are all right."""
    level_ms: float
    """Milliseconds to draft one token, all of the proposer's work included."""
    speedups: tuple[float, ...]
    """Predicted tokens per second over plain decoding, by depth of the draft."""

    @property
    def speedup(self) -> float:
        return max(self.speedups)

    @property
    def depth(self) -> int:
        """Depth of the draft with the largest speed-up."""
        return 1 + self.speedups.index(self.speedup)


@dataclass(frozen=True, slots=True)
class ExitSearch:
    """The figures of all exits tried."""

    num_tokens: int
    """Continued tokens that acceptance was counted on."""
    vocab_size: int
    """Tokens that the exits know."""
    coverage: float
    """Share of the continued tokens among those."""
    pass_ms: tuple[float, ...]
    """Milliseconds of the target's pass over 1, 2, ... tokens, never falling."""
    exits: tuple[ExitFigures, ...]

    @property
    def best(self) -> ExitFigures:
        return max(self.exits, key=lambda found: found.speedup)

    @property
    def worth_it(self) -> bool:
        return self.best.speedup >= WORTH_IT


def search(
    model: TargetModel,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    vocab_size: int | None = None,
) -> ExitSearch:
    """Try exits all over the model on `params.max_tokens` tokens that the target continues each prompt with.

    `vocab_size` is `make_exit`'s. Raises `ModelLoadError` for a forward that cannot stop early.
    """
    layers = candidate_layers(model.info.num_layers)
    exits = [make_exit(model, num_layers, vocab_size) for num_layers in layers]
    calibration = Calibration(model, prompts, params)
    passes, levels = calibration.time(exits)
    pass_ms = tuple(accumulate(passes, max))
    return ExitSearch(
        num_tokens=sum(text.num_output_tokens for text in calibration.texts),
        vocab_size=exits[0].vocab_size,
        coverage=calibration.coverage(exits[0].vocab_size),
        pass_ms=pass_ms,
        exits=tuple(
            figures(early.num_layers, survivals(calibration.right(early)), ms, pass_ms)
            for early, ms in zip(exits, levels, strict=True)
        ),
    )


def candidate_layers(num_layers: int) -> list[int]:
    """Return the layers to try, short of the last, of a model of 2 layers or more."""
    spread = {round(num_layers * i / _SPREAD) for i in range(1, _SPREAD)}
    return sorted({1} | spread - {0, num_layers})


def survivals(right: Sequence[Sequence[bool]]) -> tuple[float, ...]:
    """Return the share of places from which the next 1, 2, ... guesses of a text are all right.

    A place counts where `MAX_DEPTH` guesses lie within its text, so that all depths are of the same places.
    """
    runs = [_run(text[at : at + MAX_DEPTH]) for text in right for at in range(len(text) - MAX_DEPTH + 1)]
    return tuple(sum(run >= depth for run in runs) / max(1, len(runs)) for depth in range(1, MAX_DEPTH + 1))


def figures(num_layers: int, alive: tuple[float, ...], level_ms: float, pass_ms: Sequence[float]) -> ExitFigures:
    """Return an exit's figures; a draft of k tokens speeds up by (1 + accepted) * T(1) / (k * level + T(1 + k))."""
    speedups = tuple(
        (1.0 + sum(alive[:k])) * pass_ms[0] / (k * level_ms + pass_ms[k]) for k in range(1, len(alive) + 1)
    )
    return ExitFigures(num_layers, alive, level_ms, speedups)


def layer_file(fingerprint: str, threads: int) -> Path:
    """Return where the layer found for a model on this machine is kept."""
    return curve_file(fingerprint, threads).with_suffix(".exit.json")


def keep_layer(file: Path, num_layers: int) -> None:
    """Keep the layer found for engines that name the proposer but no layer."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"num_layers": num_layers}))


def kept_layer(file: Path) -> int | None:
    """Return the layer kept, None where there is none."""
    try:
        return int(json.loads(file.read_text())["num_layers"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _run(right: Sequence[bool]) -> int:
    """Return how many are right before the first that is not."""
    return next((i for i, is_right in enumerate(right) if not is_right), len(right))
