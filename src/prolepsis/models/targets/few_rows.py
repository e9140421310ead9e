"""Linears for a few rows at the speed of memory, bitwise the same for any number of rows.

`native/products.h` holds the kernels (AMX, AVX-512 BF16, AVX2); this file builds them, tests them against torch before
they are trusted, and puts them in the place of a model's `nn.Linear` modules.
"""

from functools import lru_cache
from types import ModuleType

import structlog
import torch
from torch import Tensor, nn

from prolepsis.core.errors import ModelLoadError
from prolepsis.native.build import compiler_missing, load_extension
from prolepsis.native.processor import (
    InstructionSet,
    describe_missing,
    instruction_sets,
    processor_flags,
)

log = structlog.get_logger(__name__)


def load_decoder(instructions: InstructionSet) -> ModuleType:
    """Build (once) and load the decoder for an instruction set; raises `ModelLoadError` where it cannot be built."""
    if (missing := compiler_missing()) is not None:
        raise ModelLoadError(missing)
    try:
        return load_extension("decoder", ("decoder.cpp",), ("-fopenmp", *instructions.flags))
    except (RuntimeError, OSError) as error:
        raise ModelLoadError(f"the native operator could not be built: {error}") from error


def agrees_with_torch(module: ModuleType) -> bool:
    """Check the few-row product against torch on a small case, before a kernel is trusted on a new processor."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(20, 64, generator=generator).bfloat16()
    weight = torch.randn(48, 64, generator=generator).bfloat16()
    expected = x.float() @ weight.float().T
    got = module.linear(x, module.pack(weight), 48, None)
    return bool(torch.allclose(got, expected, rtol=1e-4, atol=1e-3))


@lru_cache(maxsize=1)
def pick_decoder() -> tuple[ModuleType, InstructionSet]:
    """Return the fastest decoder that this machine runs rightly; raises `ModelLoadError` with what is missing."""
    candidates = instruction_sets(processor_flags())
    if not candidates:
        raise ModelLoadError(describe_missing())
    for instructions in candidates:
        module = load_decoder(instructions)
        if agrees_with_torch(module):
            return module, instructions
        log.warning("kernel_disagrees", instructions=instructions.name)
    names = ", ".join(instructions.name for instructions in candidates)
    raise ModelLoadError(f"the kernels ({names}) disagree with torch on this processor")


class FewRowsLinear(nn.Module):
    """`nn.Linear` in bf16 on packed weights; sums in float32, result rounded to bf16 once."""

    def __init__(self, module: ModuleType, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self._module = module
        self._packed: Tensor = module.pack(linear.weight.detach())
        self._bias = None if linear.bias is None else linear.bias.detach().float()

    def forward(self, x: Tensor) -> Tensor:  # [..., in_features] bf16 -> [..., out_features] bf16
        rows = x.reshape(-1, self.in_features)
        out: Tensor = self._module.linear(rows, self._packed, self.out_features, self._bias)
        return out.bfloat16().view(*x.shape[:-1], self.out_features)


def replace_linears(model: nn.Module) -> str | None:
    """Replace all bf16 `nn.Linear` of `model` by few-row linears; return the kernel's name, or None without one.

    Subclasses of `nn.Linear` stay: they mean something else.
    """
    try:
        module, instructions = pick_decoder()
    except ModelLoadError as error:
        log.info("few_rows_unavailable", reason=str(error))
        return None
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and child.weight.dtype == torch.bfloat16:
                setattr(parent, name, FewRowsLinear(module, child))
    return instructions.name
