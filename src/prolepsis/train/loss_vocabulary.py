"""Which tokens a draft model's loss is over: all of them cost more than the rest of a small model together.

The frequent tokens are in every step. The others are stood for by a fresh sample, each for as many as were left out per
one taken: the sum of exponentials over the sample, so weighted, has the whole sum as its expectation (importance
sampling of the partition function: Bengio and Senecal 2008; Jean et al. 2015, arXiv 1412.2007, section 3). So tokens
that are never in the text still learn to be unlikely.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class StepVocabulary:
    """The S tokens of one step."""

    ids: Tensor  # [S] int64
    offsets: Tensor  # [S] float32, to be added to logits: log of how many tokens each stands for

    @classmethod
    def sampled(
        cls, sure: Tensor, others: Tensor, count: int, generator: torch.Generator | None = None
    ) -> "StepVocabulary":
        """Return `sure` and, behind them, up to `count` of `others` that stand for all of those; all int64."""
        taken = others[torch.randperm(len(others), generator=generator, device=others.device)[:count]]
        offsets = torch.zeros(len(sure) + len(taken), device=sure.device)
        if len(taken):
            offsets[len(sure) :] = math.log(len(others) / len(taken))
        return cls(torch.cat([sure, taken]), offsets)


@dataclass(frozen=True, slots=True)
class LossVocabulary:
    """The tokens of every step, and those that a sample stands for."""

    frequent: Tensor  # [F] int64
    others: Tensor  # [V - F] int64
    num_sampled: int
    """Of the others, in each step; all of them where there are no more."""
    seed: int = 0

    @classmethod
    def of(cls, frequent: Tensor, vocab: int, *, num_sampled: int, seed: int = 0) -> "LossVocabulary":
        """Return the loss vocabulary of a model with `vocab` tokens."""
        rare = torch.ones(vocab, dtype=torch.bool)
        rare[frequent] = False
        others = rare.nonzero()[:, 0]
        return cls(frequent, others, min(num_sampled, len(others)), seed)

    def at(self, step: int) -> StepVocabulary:
        """Return the tokens of `step`; the same step gives the same ones."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
        return StepVocabulary.sampled(self.frequent, self.others, self.num_sampled, generator)
