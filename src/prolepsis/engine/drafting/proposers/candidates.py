"""Ranks the candidates of a drafting model for a sequence, and gives their calibration buckets.

At temperature 0 candidates are ranked by probability. Above, the target's sample is the argmax of scaled logits plus
the sequence's keyed noise, which the drafter knows too: candidates are ranked by that sum (Gumbel coupling, arXiv
2408.07978), and a softmax over the sums stands for the chance that the target, whose logits differ a little, ranks them
the same.
"""

import math

from torch import Tensor

from prolepsis.engine.drafting.proposer import SequenceView
from prolepsis.engine.sampling.noise import gumbel

CANDIDATES = 12  # tokens that a drafting model returns after each row
_BUCKETS = 16
_SAMPLED = 32  # buckets of drafts at temperature > 0 are apart


def rank_rows(
    sequence: SequenceView,
    depth: int,
    tokens: Tensor,  # [r, k] int64, likeliest first
    logprobs: Tensor,  # [r, k] float32
) -> list[list[tuple[int, float]]]:
    """Do `rank` for rows of one depth."""
    if not sequence.params.greedy:
        return [rank(sequence, depth, *row) for row in zip(tokens, logprobs, strict=True)]
    both = zip(tokens.tolist(), logprobs.exp().tolist(), strict=True)
    return [list(zip(*row, strict=True)) for row in both]


def rank(
    sequence: SequenceView,
    depth: int,  # drafted tokens between the sequence's last token and these
    tokens: Tensor,  # [k] int64, likeliest first
    logprobs: Tensor,  # [k] float32
) -> list[tuple[int, float]]:
    """Return the candidates with their chances, the likeliest to be the sequence's first."""
    params = sequence.params
    if params.greedy:
        return list(zip(tokens.tolist(), logprobs.exp().tolist(), strict=True))
    scaled = (logprobs / params.temperature).double()
    probabilities = scaled.softmax(0)
    kept = probabilities.cumsum(0) - probabilities < params.nucleus  # likeliest first, so the nucleus is in front
    if params.top_k > 0:
        kept[params.top_k :] = False
    position = len(sequence.tokens) - sequence.num_prompt_tokens + depth
    scores = (scaled + gumbel(sequence.noise_key, position, tokens)).masked_fill(~kept, -math.inf)
    chances, order = scores.softmax(0).sort(descending=True)
    return list(zip(tokens[order].tolist(), chances.tolist(), strict=True))


def confidence_bucket(sequence: SequenceView, chance: float) -> int:
    """Return the calibration bucket of a node that follows its parent with `chance`: steps of its log-odds."""
    odds = math.log(max(chance, 1e-6) / max(1.0 - chance, 1e-6))
    step = min(_BUCKETS - 1, max(0, round(1.5 * odds) + _BUCKETS // 2))
    return step if sequence.params.greedy else _SAMPLED + step
