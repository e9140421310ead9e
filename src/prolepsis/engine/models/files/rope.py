"""Frequencies of rotary position embeddings, with the scalings that extend a context.

The operations are as in transformers' `modeling_rope_utils`, one by one, so that the bits are equal.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

Rope = Mapping[str, Any]  # a configuration's `rope_parameters`


def rope_frequencies(
    rope: Rope, head_dim: int
) -> tuple[tuple[float, ...], float]:  # [head_dim / 2], and the factor on cosine and sine
    """Return the angle per position of each pair of a head, and the scaling of cosine and sine.

    Raises `ValueError` for parameters that give none.
    """
    inverse, scaling = _SCALINGS[rope.get("rope_type", "default")](rope, head_dim)
    if not torch.isfinite(inverse).all() or not math.isfinite(scaling):
        raise ValueError(f"rotary embedding {dict(rope)} has no frequencies")
    return tuple(inverse.tolist()), scaling


def _plain(rope: Rope, head_dim: int) -> Tensor:
    base = float(rope["rope_theta"])
    return torch.reciprocal(base ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim))


def _linear(rope: Rope, head_dim: int) -> tuple[Tensor, float]:
    """Position interpolation (arXiv 2306.15595)."""
    return _plain(rope, head_dim) / rope["factor"], 1.0


def _llama3(rope: Rope, head_dim: int) -> tuple[Tensor, float]:
    """Llama 3.1: long wavelengths are divided by `factor`, short ones stay, those between go from one to the other."""
    inverse = _plain(rope, head_dim)
    low, high, original = rope["low_freq_factor"], rope["high_freq_factor"], rope["original_max_position_embeddings"]
    wavelength = 2 * math.pi / inverse
    scaled = torch.where(wavelength > original / low, inverse / rope["factor"], inverse)
    share = (original / wavelength - low) / (high - low)
    between = (1 - share) * scaled / rope["factor"] + share * scaled
    is_between = ~(wavelength < original / high) & ~(wavelength > original / low)
    return torch.where(is_between, between, scaled), 1.0


def _yarn(rope: Rope, head_dim: int) -> tuple[Tensor, float]:
    """YaRN (arXiv 2309.00071): dimensions that turn often keep their frequency, slow ones are interpolated."""
    base, original = rope["rope_theta"], rope["original_max_position_embeddings"]
    factor = rope["factor"]

    def dimension(turns: float) -> float:
        """Return the dimension that turns so often over the original context."""
        return (head_dim * math.log(original / (turns * 2 * math.pi))) / (2 * math.log(base))

    low, high = dimension(rope.get("beta_fast") or 32), dimension(rope.get("beta_slow") or 1)
    if rope.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    ramp = (torch.arange(head_dim // 2, dtype=torch.float32) - low) / ((high if high != low else high + 0.001) - low)
    kept = 1 - ramp.clamp(0, 1)
    periods = base ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    return 1.0 / (factor * periods) * (1 - kept) + 1.0 / periods * kept, _yarn_scaling(rope, factor)


def _longrope(rope: Rope, head_dim: int) -> tuple[Tensor, float]:
    """LongRoPE (arXiv 2402.13753) within the original context, where the short factors hold."""
    periods = rope["rope_theta"] ** (torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim)
    inverse = 1.0 / (torch.tensor(rope["short_factor"], dtype=torch.float32) * periods)
    if rope.get("attention_factor") is not None:
        return inverse, float(rope["attention_factor"])
    factor, original = rope["factor"], rope["original_max_position_embeddings"]
    return inverse, math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0


def _yarn_scaling(rope: Rope, factor: float) -> float:
    def scale(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    if rope.get("attention_factor") is not None:
        return float(rope["attention_factor"])
    if rope.get("mscale") and rope.get("mscale_all_dim"):
        return scale(rope["mscale"]) / scale(rope["mscale_all_dim"])
    return scale(1.0)


_SCALINGS: dict[str, Callable[[Rope, int], tuple[Tensor, float]]] = {
    "default": lambda rope, head_dim: (_plain(rope, head_dim), 1.0),
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}
ROPE_TYPES = tuple(_SCALINGS)
