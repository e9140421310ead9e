"""A part of the draft vocabulary that stands for all of it: the likely tokens of some rows, and others drawn at random.

The drawn tokens stand for all that are not likely, as in `loss_vocabulary`.

Legend: r rows, D draft vocabulary, C tokens of the part, d hidden size.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from prolepsis.train.fused_losses import fused_soft_cross_entropy
from prolepsis.train.loss_vocabulary import StepVocabulary

LIKELY = 4
"""Tokens of each row that are surely in."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """A part of the vocabulary with what it is to predict."""

    head: Tensor  # [C, d + 1]: rows of the output head, and what is added to their logits
    wanted: Tensor  # [r, C] probabilities, rows sum to 1

    def loss(self, out: Tensor, rows: Tensor, weights: Tensor) -> Tensor:
        """Return the weighted sum of cross entropies of `out` [m, d] to the wanted `rows` [m]."""
        with_one = torch.cat([out, out.new_ones(len(out), 1)], dim=1)
        return fused_soft_cross_entropy(with_one, self.head, self.wanted[rows], weights)[0]


def draw(wanted: Tensor, lm_head: Tensor, count: int) -> Drawn:
    """Take the likely tokens of `wanted` [r, D] and up to `count` others of the output head [D, d]."""
    sure = torch.zeros(len(lm_head), dtype=torch.bool, device=lm_head.device)
    sure[wanted.topk(min(LIKELY, len(lm_head)), dim=-1).indices.flatten()] = True
    step = StepVocabulary.sampled(sure.nonzero()[:, 0], (~sure).nonzero()[:, 0], count)
    part = wanted[:, step.ids]
    return Drawn(torch.cat([lm_head[step.ids], step.offsets[:, None]], dim=1), part / part.sum(-1, keepdim=True))
