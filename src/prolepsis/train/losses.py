"""What the head is trained for, as formulas; `fused_losses` computes the same without keeping the logits.

Legend: r rows, D draft vocabulary, d hidden size.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention
from torch import Tensor

from prolepsis.train.vocabulary import StepVocabulary


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


class _SoftCrossEntropy(torch.autograd.Function):
    """The gradient with respect to the logits is weights * (draft - target)."""

    @staticmethod
    def forward(  # noqa: PLR0917  autograd passes all by position
        ctx: Any, out: Tensor, lm_head: Tensor, target: Tensor, weights: Tensor, offsets: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        logits = torch.mm(out, lm_head.t().to(out.dtype)).float()
        guesses = logits.argmax(-1)
        if offsets is not None:
            logits = logits.add_(offsets)
        agreement = torch.linalg.vecdot(target, logits)
        total = torch.logsumexp(logits, dim=-1)
        loss = ((total - agreement) * weights).sum()
        slope = logits.sub_(total[:, None]).exp_().sub_(target).mul_(weights[:, None]).to(out.dtype)
        grad_head = torch.mm(slope.t(), out).to(lm_head.dtype) if ctx.needs_input_grad[1] else None
        ctx.save_for_backward(torch.mm(slope, lm_head.to(out.dtype)), grad_head)
        ctx.mark_non_differentiable(guesses)
        return loss, guesses

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad_out, grad_head = ctx.saved_tensors
        scale = grads[0]
        return grad_out * scale, None if grad_head is None else grad_head * scale, None, None, None


def fused_soft_cross_entropy(
    out: Tensor, lm_head: Tensor, target: Tensor, weights: Tensor, offsets: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Do `losses.soft_cross_entropy`."""
    loss, guesses = _SoftCrossEntropy.apply(out, lm_head, target, weights, offsets)  # type: ignore[no-untyped-call]
    return loss, guesses


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
