"""The optimisers and their learning rates: Muon for matrices, AdamW for the rest, a warm-up and a linear decay.

Muon replaces the momentum of a matrix by its nearest orthogonal matrix (Jordan et al. 2024), here in float32: torch's
own runs its iteration in bfloat16, which processors without that type emulate at a tenth of the speed.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from prolepsis.training.settings import Rates

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Coefficients of the odd polynomial that drives all singular values towards 1 (the same source)."""


class Muon(Optimizer):
    """Steps matrices along the orthogonalised momentum, scaled so that rates of AdamW fit (arXiv 2502.16982)."""

    def __init__(self, matrices: Iterable[Tensor], lr: float, momentum: float = 0.95, iterations: int = 4) -> None:
        super().__init__(matrices, {"lr": lr, "momentum": momentum, "iterations": iterations})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Take one step on the current gradients."""
        assert closure is None, "gradients are computed before the step"
        for group in self.param_groups:
            for matrix in group["params"]:
                if matrix.grad is None:
                    continue
                state = self.state[matrix]
                if "momentum" not in state:
                    state["momentum"] = torch.zeros_like(matrix)
                momentum = state["momentum"]
                momentum.mul_(group["momentum"]).add_(matrix.grad)
                direction = orthogonal(matrix.grad + group["momentum"] * momentum, group["iterations"])
                matrix.add_(direction, alpha=-group["lr"] * 0.2 * max(matrix.shape[-2:]) ** 0.5)


def orthogonal(matrix: Tensor, iterations: int) -> Tensor:
    """Return a matrix [.., r, c] of the same singular vectors with all singular values near 1 (Newton-Schulz)."""
    a, b, c = COEFFICIENTS
    tall = matrix.shape[-2] > matrix.shape[-1]
    x: Tensor = matrix.mT if tall else matrix
    x = x / (torch.linalg.matrix_norm(x, keepdim=True) + 1e-7)
    for _ in range(iterations):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return x.mT if tall else x


WARM_UP = 0.03
CLIP = 0.5


def make_optimisers(tensors: Sequence[Tensor], rates: Rates) -> list[Optimizer]:
    """Return optimisers of all `tensors`; one of more than two dimensions is a stack of matrices."""
    matrices = [t for t in tensors if t.ndim >= 2 and rates.muon > 0]
    others = [t for t in tensors if not any(t is m for m in matrices)]
    optimisers: list[Optimizer] = []
    if others:
        optimisers.append(torch.optim.AdamW(others, lr=rates.adamw, betas=(0.9, 0.95), weight_decay=0.0, fused=True))
    if matrices:
        optimisers.append(Muon(matrices, lr=rates.muon))
    for optimiser in optimisers:
        for group in optimiser.param_groups:
            group["peak"] = group["lr"]
    return optimisers


def set_rate(optimisers: Sequence[Optimizer], progress: float) -> None:
    """Set the learning rate at `progress` (0 to 1) of the training."""
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
