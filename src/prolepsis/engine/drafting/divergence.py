"""Classifies the first token at which two runs differ: a rounding near-tie of the target, or a real difference.

In normal mode plain decoding and verification may sum in different orders, so logits differ in their last bits and a
choice flips where two tokens are nearly tied. Anything else is a defect. V: vocabulary.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from prolepsis.engine.sampling.sampler import Sampler, SamplingRow

BF16_FRACTION_BITS = 7
NEAR_TIE_ULPS = 2.0  # each of the two logits may be off by one unit in the last place of bfloat16


@dataclass(frozen=True, slots=True)
class Divergence:
    """The meaning of the first token at which two runs differ."""

    kind: Literal["near_tie", "structural"]
    margin: float  # distance of the two tokens' scores, in logits; infinite if one of them was not allowed
    tolerance: float  # largest margin that rounding explains, in logits


def bf16_spacing(magnitude: float) -> float:
    """Return the distance of neighbouring bfloat16 values at `magnitude` (8 significant bits)."""
    return math.ldexp(1.0, math.frexp(max(abs(magnitude), 2.0**-126))[1] - 1 - BF16_FRACTION_BITS)


def classify(
    logits: Tensor,  # [V] float32, the target's own after the last common token
    row: SamplingRow,
    tokens: tuple[int, int],
    sampler: Sampler,
) -> Divergence:
    """Classify a first divergence between `tokens` (plain, speculated) at `row`.

    A near-tie is a place where rounding by two bfloat16 spacings (at the larger of the two logits) lets either token
    win. A token wins by its score (logit, or scaled logit plus keyed noise) against the tokens kept. Truncation can
    also let it in, where it stands that close below the least likely token kept, or drop one that beats it, where that
    one stands as close above the likeliest token dropped. The shift of a nucleus by the rounding of its mass is not
    modelled: a flip there may count as structural.
    """
    tolerance = NEAR_TIE_ULPS * bf16_spacing(max(abs(float(logits[token])) for token in tokens))
    kept = sampler.scores(logits, row).isfinite()
    free = sampler.scores(logits, replace(row, params=replace(row.params, top_k=0, top_p=1.0, min_p=0.0)))
    temperature, never = 1.0 if row.params.greedy else row.params.temperature, torch.full_like(free, math.inf)
    contest, dropped = _Contest(free * temperature, kept, never, never), free.isfinite() & ~kept
    if not row.params.greedy and bool(dropped.any()):
        scaled = free - sampler.noise(row, free.device)
        to_drop, to_enter = scaled - scaled[dropped].max(), scaled[kept].min() - scaled
        contest = replace(contest, to_drop=to_drop * temperature, to_enter=to_enter * temperature)
    margin = max(contest.margin(token) for token in tokens)
    return Divergence("near_tie" if margin <= tolerance else "structural", margin, tolerance)


@dataclass(frozen=True, slots=True)
class _Contest:
    """All in logits: what each token wins by, and how far the tokens stand from being dropped or kept."""

    scores: Tensor  # [V] float64
    kept: Tensor  # [V] bool
    to_drop: Tensor  # [V] float64: distance of a kept token to the likeliest one dropped
    to_enter: Tensor  # [V] float64: distance of a dropped token to the least likely one kept

    def margin(self, token: int) -> float:
        """Smallest change of logits with which `token` may win; infinite if it is banned."""
        if not math.isfinite(float(self.scores[token])):
            return math.inf
        rivals = self.kept.clone()
        rivals[token] = False
        ahead = torch.minimum(self.scores - self.scores[token], self.to_drop)[rivals]
        lost_by = max(float(ahead.max()), 0.0) if len(ahead) else 0.0
        return lost_by if self.kept[token] else max(lost_by, float(self.to_enter[token]))
