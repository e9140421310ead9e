"""The optimisers and the rate they run at: Muon for matrices, AdamW for the rest, a warm-up and a linear decay."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim import Optimizer

from prolepsis.train.muon import Muon

WARM_UP = 0.03
CLIP = 0.5


@dataclass(frozen=True, slots=True)
class Rates:
    """Peak learning rates."""

    adamw: float = 2.5e-4
    muon: float | None = None
    """None: AdamW for matrices too."""


def make_optimisers(tensors: Sequence[Tensor], head: Tensor, rates: Rates) -> list[Optimizer]:
    """Return optimisers of all `tensors`; the output head is always AdamW's, as its rows are tokens."""
    matrices = [t for t in tensors if t.ndim == 2 and t is not head and rates.muon is not None]
    others = [t for t in tensors if not any(t is m for m in matrices)]
    optimisers: list[Optimizer] = [
        torch.optim.AdamW(others, lr=rates.adamw, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    ]
    if matrices and rates.muon is not None:
        optimisers.append(Muon(matrices, lr=rates.muon))
    for optimiser in optimisers:
        for group in optimiser.param_groups:
            group["peak"] = group["lr"]
    return optimisers


def set_rate(optimisers: Sequence[Optimizer], progress: float) -> None:
    """Set the rate at `progress` (0 to 1) of the training."""
    share = min(progress / WARM_UP, 1.0) * max(0.02, min(1.0, (1.0 - progress) / (1.0 - WARM_UP)))
    for optimiser in optimisers:
        for group in optimiser.param_groups:
            group["lr"] = group["peak"] * share


def apply(optimisers: Sequence[Optimizer], tensors: Sequence[Tensor], gradients: Sequence[Tensor]) -> float:
    """Clip and apply `gradients`; return their norm before clipping."""
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in gradients]))
    scale = min(1.0, CLIP / (float(norm) + 1e-6))
    for tensor, gradient in zip(tensors, gradients, strict=True):
        tensor.grad = gradient.mul_(scale).contiguous()  # torch's fused AdamW reads memory in the tensor's own order
    for optimiser in optimisers:
        optimiser.step()
        optimiser.zero_grad()
    return float(norm)
