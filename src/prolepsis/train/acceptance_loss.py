"""A loss shaped as acceptance: with the same keyed noise a draft is accepted if target and draft choose one token.

Each chooses the token whose log-probability and noise add up to most. So both choose v with the probability
1 / sum over w of max(p_w / p_v, q_w / q_v) (Daliri, Musco, Suresh 2024, arXiv 2408.07978). Cross entropy asks for the
target's whole distribution, this loss for what decides about drafts.

Legend: r rows, n tokens, D draft vocabulary, d hidden size.
"""

import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention
from torch import Tensor

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
