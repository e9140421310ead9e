"""Losses of heads: cross entropy to the target's distribution, and a loss shaped as acceptance.

`soft_cross_entropy` is the formula; `fused_soft_cross_entropy` computes the same without keeping the logits. Over a
large vocabulary the loss is a sampled softmax: some tokens are always in it, and a random sample stands for all others,
each token of it for as many as were left out per one taken. The sum of exponentials over the sample, so weighted, has
the whole sum as its expectation (importance sampling of the partition function: Bengio and Senecal 2008; Jean et al.
2015, arXiv 1412.2007, section 3). So tokens that never occur in the text still learn to be unlikely.

Legend: r rows, V vocabulary, D draft vocabulary, S tokens of a step, C tokens of a sampled softmax, d hidden size.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention
from torch import Tensor

LIKELY = 4
"""Tokens of each row that are always in a sampled softmax."""


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


class _SoftCrossEntropy(torch.autograd.Function):
    """The gradient with respect to the logits is weights * (draft - target)."""

    @staticmethod
    def forward(  # noqa: PLR0917  autograd passes all by position
        ctx: Any, out: Tensor, lm_head: Tensor, target: Tensor, weights: Tensor, offsets: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        rows = out.to(lm_head.dtype)
        logits = torch.mm(rows, lm_head.t()).float()
        guesses = logits.argmax(-1)
        if offsets is not None:
            logits = logits.add_(offsets)
        agreement = torch.linalg.vecdot(target, logits)
        total = torch.logsumexp(logits, dim=-1)
        loss = ((total - agreement) * weights).sum()
        slope = logits.sub_(total[:, None]).exp_().sub_(target).mul_(weights[:, None]).to(lm_head.dtype)
        grad_head = torch.mm(slope.t(), rows).to(lm_head.dtype) if ctx.needs_input_grad[1] else None
        ctx.save_for_backward(torch.mm(slope, lm_head).to(out.dtype), grad_head)
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
    """Return `soft_cross_entropy`; its gradient is computed together with it, so that no logits are kept."""
    loss, guesses = _SoftCrossEntropy.apply(out, lm_head, target, weights, offsets)  # type: ignore[no-untyped-call]
    return loss, guesses


@dataclass(frozen=True, slots=True)
class StepVocabulary:
    """The S tokens in the loss of one step."""

    ids: Tensor  # [S] int64
    offsets: Tensor  # [S] float32, added to logits: log of how many tokens each stands for

    @classmethod
    def sampled(
        cls, certain: Tensor, others: Tensor, num_sampled: int, generator: torch.Generator | None = None
    ) -> "StepVocabulary":
        """Return `certain`, followed by up to `num_sampled` of `others`, which stand for all of these; all int64."""
        sample = others[torch.randperm(len(others), generator=generator, device=others.device)[:num_sampled]]
        offsets = torch.zeros(len(certain) + len(sample), device=certain.device)
        if len(sample):
            offsets[len(certain) :] = math.log(len(others) / len(sample))
        return cls(torch.cat([certain, sample]), offsets)


@dataclass(frozen=True, slots=True)
class LossVocabulary:
    """The tokens in the loss of every step, and the tokens that a fresh sample in each step stands for."""

    frequent: Tensor  # [F] int64
    others: Tensor  # [V - F] int64
    num_sampled: int  # tokens of `others` in each step
    seed: int = 0

    @classmethod
    def of(cls, frequent: Tensor, vocab: int, *, num_sampled: int, seed: int = 0) -> "LossVocabulary":
        """Return the loss vocabulary of a model with `vocab` tokens."""
        rare = torch.ones(vocab, dtype=torch.bool)
        rare[frequent] = False
        others = rare.nonzero()[:, 0]
        return cls(frequent, others, min(num_sampled, len(others)), seed)

    def at(self, step: int) -> StepVocabulary:
        """Return the tokens of `step`; they depend on the seed and the step only."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
        return StepVocabulary.sampled(self.frequent, self.others, self.num_sampled, generator)


@dataclass(frozen=True, slots=True)
class SampledSoftmax:
    """A part of the draft vocabulary, and the target's distribution over it for some rows."""

    head: Tensor  # [C, d + 1]: rows of the output head, and the offset of their logits
    target: Tensor  # [r, C] probabilities, rows sum to 1

    @classmethod
    def of(cls, target: Tensor, lm_head: Tensor, num_sampled: int) -> "SampledSoftmax":
        """Take the likely tokens of `target` [r, D] and up to `num_sampled` others of the output head [D, d]."""
        likely = torch.zeros(len(lm_head), dtype=torch.bool, device=lm_head.device)
        likely[target.topk(min(LIKELY, len(lm_head)), dim=-1).indices.flatten()] = True
        step = StepVocabulary.sampled(likely.nonzero()[:, 0], (~likely).nonzero()[:, 0], num_sampled)
        part = target[:, step.ids]
        return cls(torch.cat([lm_head[step.ids], step.offsets[:, None]], dim=1), part / part.sum(-1, keepdim=True))

    def loss(self, out: Tensor, rows: Tensor, weights: Tensor) -> Tensor:
        """Return the weighted sum of cross entropies of `out` [m, d] to the rows `rows` [m] of the target."""
        with_one = torch.cat([out, out.new_ones(len(out), 1)], dim=1)
        return fused_soft_cross_entropy(with_one, self.head, self.target[rows], weights)[0]


LIKELIEST = 32
"""Tokens of the target in each row that are counted one by one; all others count as one, on which both never agree."""
LEAST = 1e-9
"""Probability that stands for smaller ones."""


def agreement(p: Tensor, q: Tensor) -> Tensor:  # [r, n]
    """Return for each token the probability that both distributions, [r, n] each, choose it."""
    p, q = p.clamp_min(LEAST), q.clamp_min(LEAST)
    return 1.0 / torch.maximum(p[:, None] / p[:, :, None], q[:, None] / q[:, :, None]).sum(-1)


def missed(logits: Tensor, target: Tensor, temperature: float) -> Tensor:  # [r]
    """Return the probability that a draft at `temperature` is not accepted; `logits` and `target` are [r, D]."""
    likely, ids = target.topk(min(LIKELIEST, target.shape[-1] - 1), dim=-1)
    p = likely ** (1.0 / temperature) / (target ** (1.0 / temperature)).sum(-1, keepdim=True)
    total = torch.logsumexp(logits / temperature, dim=-1, keepdim=True)
    q = torch.exp(logits.gather(1, ids) / temperature - total)
    return 1.0 - agreement(_with_rest(p), _with_rest(q))[:, :-1].sum(-1)


def acceptance_loss(
    out: Tensor,  # [r, d]
    lm_head: Tensor,  # [D, d]
    target: Tensor,  # [r, D] probabilities of the target over the draft vocabulary at temperature 1, rows sum to 1
    weights: Tensor,  # [r]
    *,
    share: float,
    temperature: float,
) -> tuple[Tensor, Tensor]:
    """Return the weighted sum of `share` * `missed` + (1 - `share`) * cross entropy, and each row's guess [r] int64."""
    logits = F.linear(out, lm_head).float()
    entropies = torch.logsumexp(logits, dim=-1) - torch.linalg.vecdot(target, logits)
    losses = share * missed(logits, target, temperature) + (1.0 - share) * entropies
    return (losses * weights).sum(), logits.argmax(-1)


def _with_rest(probabilities: Tensor) -> Tensor:  # [r, n + 1]
    return torch.cat([probabilities, 1.0 - probabilities.sum(-1, keepdim=True)], dim=-1)
