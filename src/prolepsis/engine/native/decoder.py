"""The compiled decoder, in the fastest build that this machine runs correctly."""

from functools import lru_cache

import torch

from prolepsis.core.errors import ModelLoadError
from prolepsis.engine.native.choice import ChosenKernel, choose, ways
from prolepsis.engine.native.forward import DecoderLibrary
from prolepsis.engine.native.linear import PackedLinear
from prolepsis.engine.native.processor import variants


def fault(library: DecoderLibrary) -> str | None:
    """Compare the few-row product with torch's on a small case, before a kernel is trusted on a new processor."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(20, 64, generator=generator).bfloat16()
    weight = torch.randn(48, 64, generator=generator).bfloat16()
    expected = x.float() @ weight.float().T
    got = PackedLinear(library, weight, None).product(x)
    return None if torch.allclose(got, expected, rtol=1e-4, atol=1e-3) else "it disagrees with torch on this processor"


@lru_cache(maxsize=1)
def pick_decoder() -> ChosenKernel[DecoderLibrary]:
    """Return the fastest decoder that runs correctly here; raises `ModelLoadError` with the reasons where none does."""
    try:
        return choose(variants(), ways(), DecoderLibrary, fault)
    except RuntimeError as error:
        raise ModelLoadError(str(error)) from error
