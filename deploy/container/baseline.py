"""Compiles the native code for AVX2, which any server has; a start compiles what suits its own processor better."""

from prolepsis.native.decoder import load_decoder
from prolepsis.native.processor import AVX2_FMA
from prolepsis.sampling.noise import native_kernel
from prolepsis.spec.kernel import draft_kernel


def compile_baseline() -> None:
    """Compile into the cache directory; raises what the compiler says."""
    load_decoder(AVX2_FMA)
    kernels = native_kernel(), draft_kernel()
    assert None not in kernels, "a kernel that cannot be compiled has been logged"


if __name__ == "__main__":
    compile_baseline()
