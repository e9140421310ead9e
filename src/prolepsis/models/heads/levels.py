"""Levels of a draft head as a file in its folder, bound to its weights by their checksum.

The head is a whole EAGLE-3 head without it. `models.head_levels` says what the tensors do.

Legend: n levels, w width of the levels, d hidden size.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import structlog
import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from prolepsis.core.errors import ModelLoadError
from prolepsis.models.heads.format import weights_checksum
from prolepsis.models.targets.lean import rms_norm

log = structlog.get_logger(__name__)

LEVELS = "levels/levels.safetensors"
"""Of the head's folder: in one of its own, as others read all safetensors beside a configuration as one model."""
_HEAD, _REPORT = "head_sha256", "report"  # in the file's metadata


@dataclass(slots=True)
class LevelWeights:
    """The tensors of a head's levels."""

    enter: Tensor  # [n, w, d]
    leave: Tensor  # [n, d, w]
    state: Tensor  # [w, d]
    token: Tensor  # [w, d]
    out: Tensor  # [d, w]

    @property
    def count(self) -> int:
        return self.enter.shape[0]

    @property
    def width(self) -> int:
        return self.enter.shape[1]

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors by name."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def to(self, dtype: torch.dtype, device: torch.device | None = None) -> "LevelWeights":
        """Return these weights in another type, on another device if one is given."""
        return LevelWeights(**{name: tensor.detach().to(device, dtype) for name, tensor in self.tensors().items()})


def save_levels(folder: Path, weights: LevelWeights, report: Mapping[str, Any]) -> None:
    """Write levels beside the head in `folder`, in bfloat16; `report` is how they were trained, plain JSON values."""
    part = folder / f"{LEVELS}.part"
    part.parent.mkdir(exist_ok=True)
    tensors = {name: tensor.contiguous() for name, tensor in weights.to(torch.bfloat16).tensors().items()}
    save_file(tensors, part, {_HEAD: weights_checksum(folder), _REPORT: json.dumps(dict(report))})
    part.chmod(0o644)  # the library writes for the owner only
    part.replace(folder / LEVELS)


def load_levels(folder: Path, hidden: int) -> LevelWeights | None:
    """Read the levels of the head in `folder`; None where it has none, or has other weights than they were trained for.

    Raises `ModelLoadError` for a file that is broken or not of `hidden` columns.
    """
    file = folder / LEVELS
    if not file.is_file():
        return None
    try:
        with safe_open(str(file), framework="pt") as found:
            trained_for = (found.metadata() or {}).get(_HEAD)
            weights = LevelWeights(**{f.name: found.get_tensor(f.name) for f in fields(LevelWeights)})
    except (OSError, SafetensorError) as error:
        raise ModelLoadError(f"{file} holds no levels of a draft head: {error}") from error
    n, w = (weights.enter.shape[0], weights.enter.shape[1]) if weights.enter.ndim == 3 else (0, 0)
    expected = {
        "enter": (n, w, hidden),
        "leave": (n, hidden, w),
        "state": (w, hidden),
        "token": (w, hidden),
        "out": (hidden, w),
    }
    for name, tensor in weights.tensors().items():
        if tuple(tensor.shape) != expected[name]:
            raise ModelLoadError(f"{file}: {name} is {list(tensor.shape)}; allowed: {list(expected[name])}")
    if trained_for != weights_checksum(folder):
        log.warning("levels_unused", file=str(file), reason="trained for other weights of the head")
        return None
    return weights


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
