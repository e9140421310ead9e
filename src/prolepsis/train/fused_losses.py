"""`losses.soft_cross_entropy` with its gradient computed at once, so that no logits are kept.

Legend: r rows, D draft vocabulary, d hidden size.
"""

from typing import Any

import torch
from torch import Tensor


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
