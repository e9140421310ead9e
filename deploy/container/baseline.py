"""Compiles the native code for AVX2, which any server has; a start compiles what suits its own processor better."""

from prolepsis.engine.native.proposing import draft_kernel
from prolepsis.engine.native.decoder import load_decoder
from prolepsis.engine.native.processor import AVX2_FMA
from prolepsis.engine.sampling.noise import native_kernel


def compile_baseline() -> None:
    """Compile into the cache directory; raises what the compiler says."""
    load_decoder(AVX2_FMA)
    kernels = native_kernel(), draft_kernel()
    assert None not in kernels, "a kernel that cannot be compiled has been logged"


if __name__ == "__main__":
    compile_baseline()
