"""Keyed noise: the Gumbel noise of every token, a function of seed, sequence, position and token alone.

The module also loads the compiled sampling kernel, which computes the noise on the CPU.
"""

import functools

import torch
from torch import Tensor

from prolepsis.engine.native.choice import common_library
from prolepsis.engine.native.picking import SamplingKernel


@functools.cache
def native_kernel() -> SamplingKernel | None:
    """Return the sampling kernel, loaded once for the process; None where that is not possible."""
    library = common_library()
    return None if library is None else SamplingKernel(library)


_MASK = 2**64 - 1
_STEP = 0x9E3779B97F4A7C15
_POSITION_STEP = 0xD1B54A32D192ED03
_LN2_HIGH = float.fromhex("0x1.62e42fefa38p-1")  # 40 bits: exact when multiplied by an exponent
_LN2_LOW = float.fromhex("0x1.ef35793c7673p-45")


def noise_key(seed: int, index: int) -> int:
    """Return the 64-bit key of sample `index` of a request with `seed`."""
    return mix((mix((seed + _STEP) & _MASK) + (index + 1) * _STEP) & _MASK)


def position_key(key: int, position: int) -> int:
    """Return the 64-bit key of one output position (0 for the first generated token) of the sample keyed `key`."""
    return mix((key + (position + 1) * _POSITION_STEP) & _MASK)


def gumbel(
    key: int,
    position: int,
    tokens: Tensor,  # [N] int64 token ids, any subset of the vocabulary
) -> Tensor:  # [N] float64, standard Gumbel in (-3.7, 36.8)
    """Return g(key, position, token) = -log(-log u) for each token, u uniform on the odd multiples of 2^-53.

    The target's token is argmax(log p + g) (Gumbel-max). A proposer that adds the same noise to its own scores agrees
    with it as often as the distributions allow (Daliri, Musco, Suresh 2024, arXiv 2408.07978).
    """
    row_key = position_key(key, position)
    kernel = native_kernel() if tokens.device.type == "cpu" else None
    if kernel is None:
        return reference_gumbel(row_key, tokens)
    return kernel.gumbel(row_key, tokens.to(torch.int64))


def reference_gumbel(
    row_key: int,
    tokens: Tensor,  # [N]
) -> Tensor:  # [N] float64
    """Return the noise of one position, computed in torch only; `row_key` is `position_key(key, position)`."""
    state = (tokens.to(torch.int64) + 1) * _signed(_STEP) + _signed(row_key)
    state = (state ^ _shift(state, 30)) * _signed(0xBF58476D1CE4E5B9)
    state = (state ^ _shift(state, 27)) * _signed(0x94D049BB133111EB)
    state = state ^ _shift(state, 31)
    uniform = (_shift(state, 12).to(torch.float64) + 0.5) * 2.0**-52
    return -_logarithm(-_logarithm(uniform))


def _logarithm(x: Tensor) -> Tensor:
    # x = 2^k * m with m in [sqrt(1/2), sqrt(2)); log m = 2 atanh(s), s = (m - 1) / (m + 1), by its series.
    shifted = x.view(torch.int64) + (0x3FF0000000000000 - 0x3FE6A09E00000000)
    k = ((shifted >> 52) - 1023).to(torch.float64)
    m = ((shifted & 0xFFFFFFFFFFFFF) + 0x3FE6A09E00000000).view(torch.float64)
    f = m - 1.0
    s = f / (f + 2.0)
    z = s * s
    series = torch.full_like(z, 1.0 / 21)
    for odd in range(19, 1, -2):
        series = series * z + 1.0 / odd
    series = series * z
    twice = s + s
    return k * _LN2_HIGH + (twice + (twice * series + k * _LN2_LOW))


def mix(z: int) -> int:
    """Return 64 bits all of which depend on all of those given (splitmix64)."""
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & _MASK
    return z ^ (z >> 31)


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


def _shift(values: Tensor, bits: int) -> Tensor:
    return (values >> bits) & ((1 << (64 - bits)) - 1)
