"""What the head is trained for, as formulas; `fused_losses` computes the same without keeping the logits.

Legend: r rows, D draft vocabulary, d hidden size.
"""

import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention
from torch import Tensor


def soft_cross_entropy(
    out: Tensor,  # [r, d]
    lm_head: Tensor,  # [D, d]
    target: Tensor,  # [r, D] probabilities of the target over the draft vocabulary, rows sum to 1
    weights: Tensor,  # [r]
    offsets: Tensor | None = None,  # [D] to be added to the logits
) -> tuple[Tensor, Tensor]:
    """Return the weighted sum of cross entropies, and each row's guess [r] int64: its likeliest without offsets.

    It differs from the KL divergence KL(target || draft) by the target's entropy, which no weight of the head changes.
    """
    logits = F.linear(out, lm_head).float()
    moved = logits if offsets is None else logits + offsets
    losses = -(target * F.log_softmax(moved, dim=-1)).sum(-1)
    return (losses * weights).sum(), logits.argmax(-1)


def feature_distance(out: Tensor, wanted: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted sum of smooth L1 distances to the target's own normed states (EAGLE-1), both [r, d]."""
    return (F.smooth_l1_loss(out, wanted, reduction="none").mean(-1) * weights).sum()


def trimmed(logits: Tensor) -> Tensor:
    """Return probabilities [r, D] from the target's logits at the tokens of the draft vocabulary."""
    return torch.softmax(logits.float(), dim=-1)
