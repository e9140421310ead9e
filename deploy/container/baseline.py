"""Compiles the native code for AVX2, which any server has; a start compiles what suits its own processor better."""

from prolepsis_kernels import declared

from prolepsis.engine.native.build import compiled


def compile_baseline() -> None:
    """Compile into the cache directory; raises what the compiler says."""
    for spec in declared():
        if spec.name in ("common", "avx2"):
            compiled(spec)


if __name__ == "__main__":
    compile_baseline()
