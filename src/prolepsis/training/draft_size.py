"""Which draft pays for a target, before any is trained: acceptance from measured points, costs from bytes.

As published, acceptance is linear in the logarithm of the text and of a head's layers (arXiv 2505.07858), and follows
from a draft model's size rather than its target's (2603.11053). The lines are fitted here, with 95 % for a new point.
"""

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path

import numpy as np

from prolepsis.engine.models.files.described import BYTES_OF, bytes_per_pass, least_loaded_bytes, weights_by_format
from prolepsis.engine.models.files.weights import open_checkpoint
from prolepsis.engine.models.targets.lean_shape import LeanShape
from prolepsis.training.estimate import CEILING, MAX_DEPTH, expected_of, gain
from prolepsis.training.settings import WIDTH_STEP, HeadRecipe, LevelSettings, StatedStepCost


@dataclass(frozen=True, slots=True)
class Point:
    """A measured acceptance of first tokens, over a mixture of texts."""

    source: str
    target: float  # its weights
    size: float  # of heads: answer tokens of text; of draft models: weights
    acceptance: float
    layers: float = 1.0  # weights of a head's layer in those of a layer like the target's


HEADS = (
    Point("SmolLM2-135M-Instruct, ours", 135e6, 0.22e6, 0.354),
    Point("SmolLM2-135M-Instruct, ours", 135e6, 0.98e6, 0.442),
    Point("SmolLM2-135M-Instruct, ours", 135e6, 3.09e6, 0.564),
    Point("SmolLM2-135M-Instruct, ours", 135e6, 5.20e6, 0.612),
    Point("Gemma 3 270M, ours", 270e6, 0.28e6, 0.437),
    Point("Qwen2.5-Coder-1.5B-Instruct, ours", 1.54e9, 0.78e6, 0.630, 0.32),
    Point("Qwen3-8B, vllm-project/speculators, tutorial", 8.2e9, 2.5e6, 0.408),
    Point("Qwen3-8B, vllm-project/speculators#567", 8.2e9, 5.0e6, 0.46),
    Point("Qwen3-8B, vllm-project/speculators#563", 8.2e9, 254e6, 0.757),
    Point("Qwen3-30B-A3B, vllm-project/speculators#610", 30.5e9, 254e6, 0.586),
)
"""Of Qwen3 samples are published, each taken for 500 answer tokens; #563: the mean of its three kinds of text."""
MODELS = (
    Point("T5-XXL, arXiv 2211.17192", 11.3e9, 77e6, 0.70),
    Point("T5-XXL, arXiv 2211.17192", 11.3e9, 250e6, 0.765),
    Point("T5-XXL, arXiv 2211.17192", 11.3e9, 800e6, 0.78),
    Point("LaMDA, arXiv 2211.17192", 137e9, 100e6, 0.61),
    Point("LaMDA, arXiv 2211.17192", 137e9, 2e9, 0.71),
    Point("LaMDA, arXiv 2211.17192", 137e9, 8e9, 0.75),
    Point("Qwen2.5-7B, huggingface.co/RyeCatcher/speculative-decoding-cross-domain-analysis", 7.6e9, 490e6, 0.75),
    Point("GPT-2 large, hurjun/speculative-decoding-lab", 774e6, 82e6, 0.71),
    Point("GPT-2 medium, hurjun/speculative-decoding-lab", 355e6, 82e6, 0.642),
)
"""Pre-trained draft models; of several kinds of text their mean, of a range its middle."""
_STEP_MS = 0.4  # that a step with a draft takes more outside of passes, as measured with one request
_QUANTILE = 2.35  # of Student's t with 7 or 8 degrees of freedom, two-sided 95 %
_LAYER_GAIN = 0.02  # acceptance for each doubling of a head's layer: assumed, from none to twice as much
_REACH = 10.0  # times beyond the measured points: farther nothing is known


@dataclass(frozen=True, slots=True)
class Bounds:
    """An estimate and its interval."""

    estimate: float
    lower: float
    upper: float


_CERTAIN = Bounds(1.0, 1.0, 1.0)
_HEAD_LATER = Bounds(0.8, 0.65, 0.92)
"""Acceptance of later tokens in that of the first: ours .63 to .78 and .83 to .92 by levels, published .81 to .90."""


def acceptance(points: Sequence[Point], size: float, target: float, layers: float = 1.0) -> Bounds | None:
    """Return the acceptance of first tokens in [0, CEILING] of a draft like `points`, None too far beyond them."""
    pairs = (size, [point.size for point in points]), (target, [point.target for point in points])
    if not all(min(measured) / _REACH <= value <= max(measured) * _REACH for value, measured in pairs):
        return None
    x = np.log10(pairs[0][1])
    y = np.array([point.acceptance - _LAYER_GAIN * math.log2(point.layers) for point in points])
    slope, level = map(float, np.polyfit(x, y, 1))
    errors, place, extra = y - level - slope * x, math.log10(size), _LAYER_GAIN * math.log2(layers)
    spread = math.sqrt(1 + 1 / len(x) + (place - x.mean()) ** 2 / ((x - x.mean()) ** 2).sum())
    half = _QUANTILE * spread * math.sqrt(errors @ errors / (len(x) - 2)) + abs(extra)
    middle = level + slope * place + extra
    return Bounds(*(round(float(np.clip(rate, 0.0, CEILING)), 3) for rate in (middle, middle - half, middle + half)))


@dataclass(frozen=True, slots=True)
class TargetSize:
    """Sizes of a target with dense layers."""

    weights: int
    bytes_per_pass: float
    hidden: int
    attention: int  # widths of all query heads three times, and of all key heads four times
    intermediate: int

    @classmethod
    def stated(cls, weights: int, bits: float) -> "TargetSize":
        """Return a target of so many weights; its widths are about those of published models of 0.1 to 70 billion."""
        hidden = 128 * max(1, round(28 * (weights / 7.6e9) ** 0.45))
        return cls(weights, weights * bits / 8, hidden, 4 * hidden, 7 * hidden // 2)

    @classmethod
    def of_files(cls, path: Path, form: str) -> "TargetSize":
        """Return sizes of a model, `form` as in the setting `weights`; raises `ModelLoadError` for other layers."""
        shape = LeanShape.from_config(open_checkpoint(path).config)
        attention = (3 * shape.heads + 4 * shape.kv_heads) * shape.head_dim
        num_bytes = min(bytes_per_pass(path), least_loaded_bytes(path, form))
        return cls(weights_by_format(path).total(), num_bytes, shape.hidden, attention, shape.intermediate)

    def head_weights(self, intermediate: int) -> int:
        """Return the weights of an EAGLE-3 head over three layers, without its output head."""
        return self.hidden * (3 * self.hidden + self.attention + 3 * intermediate)


@dataclass(frozen=True, slots=True)
class SizedDraft:
    """A draft for a target, and what it is expected to bring; None: not known."""

    draft: str
    basis: str  # what was measured that its acceptance rests on
    text: int | None  # answer tokens to train on; None: nothing is trained here
    weights: int
    draft_ms: float  # of its first token
    acceptance: Bounds | None = None  # of the first token
    depth: int | None = None
    tokens: float | None = None  # expected tokens a pass
    speedup: Bounds | None = None


def sized_drafts(target: TargetSize, cost: StatedStepCost, budgets: Sequence[int]) -> list[SizedDraft]:
    """Return drafts for `target`, none first; they read weights as fast as its pass over one token reads its own."""
    byte_ms, levels = cost.plain_ms / target.bytes_per_pass, LevelSettings()
    output_ms = cost.plain_ms / target.weights * HeadRecipe().draft_vocab * target.hidden
    level_ms = byte_ms * BYTES_OF["q8"] * 3 * levels.width * target.hidden
    rows = [SizedDraft("none", "", None, 0, 0.0, depth=0, tokens=1.0, speedup=_CERTAIN)]
    for part in (1, 4, 12):
        wide = WIDTH_STEP * max(1, round(target.intermediate / part / WIDTH_STEP))
        weights = target.head_weights(wide)
        first_ms = byte_ms * BYTES_OF["q8"] * weights + output_ms
        for tokens in budgets:
            rates = acceptance(HEADS, tokens, target.weights, weights / target.head_weights(target.intermediate))
            row = SizedDraft(f"head, MLP {wide}", f"{len(HEADS)} heads", tokens, weights, first_ms, rates)
            rows.append(_with_gain(row, _HEAD_LATER, level_ms, 1 + levels.count, cost))
    for part in (50, 20, 10, 5):
        weights, token_ms = target.weights // part, cost.plain_ms / part
        rates = acceptance(MODELS, weights, target.weights)
        row = SizedDraft(f"draft model, 1/{part}", f"{len(MODELS)} draft models", None, weights, token_ms, rates)
        rows.append(_with_gain(row, _CERTAIN, token_ms, MAX_DEPTH, cost))
    return rows


def best(rows: Sequence[SizedDraft], kind: str) -> str:
    """Return which draft of a kind has the largest expected speedup, or none."""
    known = [(row.speedup.estimate, row) for row in rows if row.speedup and row.draft.startswith(("none", kind))]
    row = max(known, key=lambda pair: pair[0])[1]
    return row.draft if row.text is None else f"{row.draft}, {row.text:,} tokens of text"


def _with_gain(row: SizedDraft, later: Bounds, later_ms: float, most: int, cost: StatedStepCost) -> SizedDraft:
    if row.acceptance is None:
        return replace(row, basis="not known")

    def speedup(rates: Sequence[float], depth: int) -> float:
        return gain(rates, depth, cost, _STEP_MS + row.draft_ms + (depth - 1) * later_ms)

    rates = [(rate, rate * share) for rate, share in zip(astuple(row.acceptance), astuple(later), strict=True)]
    depth = max(range(1, 1 + most), key=lambda depth: speedup(rates[0], depth))
    bounds = Bounds(*(round(speedup(pair, depth), 2) for pair in rates))
    return replace(row, depth=depth, tokens=round(expected_of(rates[0], depth), 2), speedup=bounds)
