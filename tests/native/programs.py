"""Small C++ programs around the kernels, compiled for each instruction set that this processor runs."""

import os
import subprocess
from pathlib import Path

import pytest

from prolepsis.native.build import SOURCES, compiler_missing
from prolepsis.native.processor import (
    AMX_BF16,
    AVX2_FMA,
    AVX512_BF16,
    InstructionSet,
    instruction_sets,
    processor_flags,
)

HERE = Path(__file__).parent
EMULATED = ("-DPROLEPSIS_AMX", "-DPROLEPSIS_EMULATE_AMX")
HERE_RUNS = instruction_sets(processor_flags())

needs_compiler = pytest.mark.skipif(compiler_missing() is not None, reason=f"{compiler_missing()}")
each_build = pytest.mark.parametrize(
    ("instructions", "emulated"),
    [(AVX2_FMA, False), (AVX512_BF16, False), (AMX_BF16, False), (AVX2_FMA, True)],
    ids=["avx2", "avx512_bf16", "amx_bf16", "emulated-amx"],
)


def output_of(source: str, instructions: InstructionSet, folder: Path, *, emulated: bool) -> str:
    """Compile `source` beside this file, with emulated tiles or without, and return what it prints."""
    if instructions not in HERE_RUNS:
        pytest.skip("not an instruction set of this processor")
    program = folder / Path(source).stem
    flags = ["-std=c++20", "-O1", *instructions.flags, *(EMULATED if emulated else ()), f"-I{SOURCES}", f"-I{HERE}"]
    subprocess.run([os.environ.get("CXX", "c++"), *flags, str(HERE / source), "-o", str(program)], check=True)
    return subprocess.run([str(program)], capture_output=True, text=True, check=False).stdout.strip()
