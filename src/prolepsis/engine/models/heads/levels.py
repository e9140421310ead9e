"""Levels of a draft head: they predict the tokens after the first one from the head's one pass over committed tokens.

z [d] is the head's state after the last committed token, before its final norm N. Level i = 1 .. n predicts the token
after i drafted tokens. Before any of them is known, it predicts with the logits of
    p_i = z + leave_i silu(enter_i N(z))                        (a block as in Medusa, arXiv 2401.10774)
and, once the last of them is x with embedding e(x), with those of
    s_i(x) = p_i + out silu(state N(p_i) + token e(x) / rms(e(x)))      (conditioned as in Hydra, arXiv 2402.05109)
The p_i of all levels pass the output head together with z, so its weights are read once. s_i(x) only chooses among the
likeliest tokens of p_i, so it reads as many rows of the output head.

Levels are a file in the head's folder, bound to the head's weights by their checksum. Without it the head is a complete
EAGLE-3 head.

Legend: r rows, n levels, w width of the levels, d hidden size.
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
from prolepsis.core.files import replacing
from prolepsis.engine.models.heads.format import from_file, read_config, to_file, weights_checksum
from prolepsis.engine.models.targets.lean import rms_norm

log = structlog.get_logger(__name__)

LEVELS = "levels/levels.safetensors"
"""File in the head's folder; in a subfolder, because other programs read all safetensors of a folder as one model."""
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
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def to(self, dtype: torch.dtype, device: torch.device | None = None) -> "LevelWeights":
        return LevelWeights(**{name: tensor.detach().to(device, dtype) for name, tensor in self.tensors().items()})


def save_levels(folder: Path, weights: LevelWeights, report: Mapping[str, Any]) -> None:
    """Write the levels of the head in `folder` in its format, with a `report` on their training (plain JSON values)."""
    file = folder / LEVELS
    file.parent.mkdir(exist_ok=True)
    kind = read_config(folder).storage.weights
    tensors = {name: to_file(tensor, kind) for name, tensor in weights.tensors().items()}
    with replacing(file, mode=0o644) as part:
        save_file(tensors, part, {_HEAD: weights_checksum(folder), _REPORT: json.dumps(dict(report))})


def read_report(folder: Path) -> dict[str, Any]:
    with safe_open(str(folder / LEVELS), framework="pt") as stored:
        report: dict[str, Any] = json.loads(stored.metadata()[_REPORT])
    return report


def load_levels(folder: Path, hidden: int) -> LevelWeights | None:
    """Read the levels of the head in `folder`; return None if it has none, or if they were trained for other weights.

    Raises `ModelLoadError` for a file that is damaged or not of `hidden` columns.
    """
    file = folder / LEVELS
    if not file.is_file():
        return None
    try:
        with safe_open(str(file), framework="pt") as stored:
            trained_for = (stored.metadata() or {}).get(_HEAD)
            weights = LevelWeights(**{f.name: from_file(stored.get_tensor(f.name)) for f in fields(LevelWeights)})
    except (OSError, SafetensorError) as error:
        raise ModelLoadError(f"{file} does not hold the levels of a draft head: {error}") from error
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
        w = self.weights
        entered = torch.matmul(self.normed(z), w.enter.transpose(1, 2))
        return z + torch.matmul(F.silu(entered), w.leave.transpose(1, 2))

    def entered(self, ahead: Tensor) -> Tensor:  # [.., d] -> [.., w]
        """Return the part of p that is combined with the drafted token."""
        return F.linear(self.normed(ahead), self.weights.state)

    def conditioned(self, ahead: Tensor, entered: Tensor, tokens: Tensor) -> Tensor:
        """Return s [.., d] of p [.., d], `entered(p)` and `of_tokens` of the last drafted tokens, both [.., w]."""
        return ahead + F.linear(F.silu(entered + tokens), self.weights.out)

    def of_tokens(self, embeddings: Tensor) -> Tensor:  # [.., d] -> [.., w]
        """Return the levels' input from drafted tokens."""
        ones = torch.ones_like(self.norm)
        return F.linear(rms_norm(embeddings, ones, self.eps), self.weights.token)

    def normed(self, states: Tensor) -> Tensor:
        return rms_norm(states, self.norm, self.eps)
