"""Levels of a draft head: what follows the tokens it drafts, from its one pass over committed tokens.

z [d] is the head's state after the last committed token, before its final norm N. Level i = 1 .. n says what follows i
drafted tokens. Before any of them is known it expects the logits of
    p_i = z + leave_i silu(enter_i N(z))                        (a block as in Medusa, arXiv 2401.10774)
and, once the last of them is x with embedding e(x),
    s_i(x) = p_i + out silu(state N(p_i) + token e(x) / rms(e(x)))      (conditioned as in Hydra, arXiv 2402.05109)
The p_i of all levels pass the output head together with z, so its weights are read once; s_i(x) chooses among the
likeliest tokens of p_i only, so it reads as many rows of the output head.

Legend: r rows, n levels, w width of the levels, d hidden size.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention
from torch import Tensor

from prolepsis.models.lean import rms_norm
from prolepsis.models.levels_file import LevelWeights


@dataclass(frozen=True, slots=True)
class HeadLevels:
    """The levels' weights and the head's final norm, ready to compute in their type."""

    weights: LevelWeights
    norm: Tensor  # [d]
    eps: float

    def ahead(self, z: Tensor) -> Tensor:  # [r, d] -> [n, r, d]
        """Return p of all levels."""
        w = self.weights
        entered = torch.matmul(self.normed(z), w.enter.transpose(1, 2))
        return z + torch.matmul(F.silu(entered), w.leave.transpose(1, 2))

    def entered(self, ahead: Tensor) -> Tensor:  # [.., d] -> [.., w]
        """Return what of p meets the drafted token."""
        return F.linear(self.normed(ahead), self.weights.state)

    def told(self, ahead: Tensor, entered: Tensor, tokens: Tensor) -> Tensor:
        """Return s [.., d] of p [.., d], `entered(p)` and `of_tokens` of the last drafted tokens, both [.., w]."""
        return ahead + F.linear(F.silu(entered + tokens), self.weights.out)

    def of_tokens(self, embeddings: Tensor) -> Tensor:  # [.., d] -> [.., w]
        """Return what the levels see of drafted tokens."""
        ones = torch.ones_like(self.norm)
        return F.linear(rms_norm(embeddings, ones, self.eps), self.weights.token)

    def normed(self, states: Tensor) -> Tensor:
        """Return what the output head is multiplied with."""
        return rms_norm(states, self.norm, self.eps)
