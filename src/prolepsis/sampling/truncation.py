"""Temperature, top-k, top-p and min-p of one row in torch: the readable reference of the compiled kernel.

V: vocabulary. Likelier means a larger logit, or the same and a lower id. Each filter keeps a run of the likeliest, so
together they keep the shortest of their runs.
"""

import math

import torch
from torch import Tensor

from prolepsis.core.sampling_params import SamplingParams

_HEAD = 1024
"""Tokens sorted at first; the whole row is sorted only where they do not hold the nucleus."""


def scale(
    logits: Tensor,  # [V]
    temperature: float,
) -> Tensor:  # [V] float64, at most 0
    """Return (logits - max) / temperature; a temperature above 0, however small, neither overflows nor loses ties."""
    values = logits.to(torch.float64)
    return (values - values.max()) * (1.0 / max(temperature, 1e-300))


def kept(
    scaled: Tensor,  # [V] float64
    params: SamplingParams,
) -> Tensor:  # [V] bool
    """Return which tokens stay: top-k, then the nucleus of what top-k left, then min-p.

    The nucleus is the shortest run whose mass is at least `top_p` times the mass before it.
    """
    keep = torch.ones_like(scaled, dtype=torch.bool)
    weights = scaled.exp()
    if 0 < params.top_k < len(scaled):
        keep = _mask(likeliest(scaled, params.top_k)[: params.top_k], keep)
    if params.top_p < 1.0:
        keep = keep & _nucleus(scaled, weights, params.top_p * float(weights[keep].sum()))
    if params.min_p > 0.0:
        keep = keep & (scaled >= math.log(params.min_p))
    return keep


def _nucleus(scaled: Tensor, weights: Tensor, mass: float) -> Tensor:
    for head in (min(_HEAD, len(scaled)), len(scaled)):
        ids = likeliest(scaled, head)
        reached = weights[ids].cumsum(0)
        if float(reached[-1]) >= mass:
            size = int((reached < mass).sum()) + 1
            return _mask(ids[:size], weights)
    return torch.ones_like(scaled, dtype=torch.bool)


def _mask(ids: Tensor, like: Tensor) -> Tensor:
    mask = torch.zeros_like(like, dtype=torch.bool)
    mask[ids] = True
    return mask


def likeliest(scaled: Tensor, count: int) -> Tensor:
    """Return the `count` likeliest ids in order, and all that equal the last of them."""
    least = torch.topk(scaled, count).values[-1]
    ids = (scaled >= least).nonzero().squeeze(1)
    order = torch.sort(scaled[ids], descending=True, stable=True).indices
    return ids[order]
