"""Small C++ programs around the kernels, compiled for each instruction set that this processor runs."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from prolepsis.engine.native.build import SOURCES, build_key, built, compiler_missing, run_compiler
from prolepsis.engine.native.processor import (
    AMX_BF16,
    AVX2_FMA,
    AVX512_BF16,
    AVX512_VNNI,
    AVX_VNNI,
    InstructionSet,
    instruction_sets,
    processor_flags,
)

HERE = Path(__file__).parent
EMULATED = ("-DPROLEPSIS_AMX", "-DPROLEPSIS_EMULATE_AMX")
HERE_RUNS = instruction_sets(processor_flags())

needs_compiler = pytest.mark.skipif(compiler_missing() is not None, reason=f"{compiler_missing()}")
BUILDS = {found.name: (found, False) for found in (AVX2_FMA, AVX512_VNNI, AVX512_BF16, AMX_BF16)}
BUILDS |= {"emulated-amx": (AVX2_FMA, True)}
"""All that differ where no bytes are multiplied."""
WITH_BYTES = BUILDS | {"avx_vnni": (AVX_VNNI, False)}


def output_of(source: str, instructions: InstructionSet, *, emulated: bool) -> str:
    """Compile `source` next to this file, with emulated tiles or without, and return what it prints.

    The program is kept by its sources, as extensions are.
    """
    if instructions not in HERE_RUNS:
        pytest.skip("not an instruction set of this processor")
    flags = ["-std=c++20", "-O1", *instructions.flags, *(EMULATED if emulated else ())]

    def compile_program(target: Path) -> None:
        run_compiler([*flags, f"-I{SOURCES}", f"-I{HERE}", str(HERE / source), "-o", str(target)])

    program = built(Path(source).stem, build_key([source, *flags], _sources()), compile_program)
    return subprocess.run([str(program)], capture_output=True, text=True, check=False).stdout.strip()


def _sources() -> Iterator[Path]:
    for folder in (SOURCES, HERE):
        yield from folder.glob("*.[hc]*")
