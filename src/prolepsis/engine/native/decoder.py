"""The compiled decoder, in the fastest build that this machine runs correctly."""

from functools import lru_cache
from types import ModuleType

import structlog
import torch

from prolepsis.core.errors import ModelLoadError
from prolepsis.engine.native.build import compiler_missing, load_extension
from prolepsis.engine.native.processor import InstructionSet, describe_missing, instruction_sets, processor_flags

log = structlog.get_logger(__name__)


def load_decoder(instructions: InstructionSet) -> ModuleType:
    """Build (once) and load the decoder for an instruction set; raises `ModelLoadError` if it cannot be built."""
    try:
        return load_extension("decoder", ("decoder.cpp", "int8_products.cpp"), ("-fopenmp", *instructions.flags))
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
    """Return the fastest decoder that runs correctly here; raises `ModelLoadError` with the missing requirement."""
    candidates = instruction_sets(processor_flags())
    if not candidates:
        raise ModelLoadError(describe_missing())
    if (missing := compiler_missing()) is not None:
        raise ModelLoadError(missing)
    for instructions in candidates:
        try:
            module = load_decoder(instructions)
        except ModelLoadError as error:  # an older compiler may not know the instructions
            if instructions is candidates[-1]:
                raise
            log.warning("kernel_not_built", instructions=instructions.name, reason=str(error))
            continue
        if agrees_with_torch(module):
            return module, instructions
        log.warning("kernel_disagrees", instructions=instructions.name)
    names = ", ".join(instructions.name for instructions in candidates)
    raise ModelLoadError(f"the kernels ({names}) disagree with torch on this processor")
