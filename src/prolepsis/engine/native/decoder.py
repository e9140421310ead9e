"""The compiled decoder, in the fastest build that this machine runs correctly."""

import importlib.util
from functools import lru_cache
from pathlib import Path
from types import ModuleType

import torch

from prolepsis.core.errors import ModelLoadError
from prolepsis.engine.native.choice import ChosenKernel, choose, ways
from prolepsis.engine.native.processor import variants


def load_decoder(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None, "a path that ends in .so has a loader"
    assert spec.loader is not None, "a path that ends in .so has a loader"
    extension = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(extension)
    return extension


def fault(module: ModuleType) -> str | None:
    """Compare the few-row product with torch's on a small case, before a kernel is trusted on a new processor."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(20, 64, generator=generator).bfloat16()
    weight = torch.randn(48, 64, generator=generator).bfloat16()
    expected = x.float() @ weight.float().T
    got = module.linear(x, module.pack(weight), 48, None)
    return None if torch.allclose(got, expected, rtol=1e-4, atol=1e-3) else "it disagrees with torch on this processor"


@lru_cache(maxsize=1)
def pick_decoder() -> ChosenKernel[ModuleType]:
    """Return the fastest decoder that runs correctly here; raises `ModelLoadError` with the reasons where none does."""
    try:
        return choose(variants(), ways(), load_decoder, fault)
    except RuntimeError as error:
        raise ModelLoadError(str(error)) from error
