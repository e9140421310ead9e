"""Small C++ programs around the kernels, compiled for each instruction set that this processor runs."""

import subprocess
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

import pytest
from prolepsis_kernels import SOURCES, declared

from prolepsis.engine.native.build import built, compiler_missing, run_compiler
from prolepsis.engine.native.processor import instruction_sets, processor_flags

HERE = Path(__file__).parent
EMULATED = ("-DPROLEPSIS_AMX", "-DPROLEPSIS_EMULATE_AMX")
ARM_COMPILER, ARM_EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
HERE_RUNS = instruction_sets(processor_flags())

needs_compiler = pytest.mark.skipif(compiler_missing() is not None, reason=f"{compiler_missing()}")
BUILDS = {name: (name, False) for name in ("avx2", "avx512_vnni", "avx512_bf16", "amx_bf16")}
BUILDS |= {"emulated-amx": ("avx2", True)}
"""All that differ where no bytes are multiplied."""
WITH_BYTES = BUILDS | {"avx_vnni": ("avx_vnni", False)}


def output_of(source: str, instructions: str, *, emulated: bool = False, runner: Sequence[str] = ()) -> str:
    """Compile `source` next to this file, with emulated tiles or without, and return what it prints.

    The program is kept by its sources, as libraries are. `runner` runs one of another kind of processor.
    """
    if instructions not in HERE_RUNS and not runner:
        pytest.skip("not an instruction set of this processor")
    [spec] = (spec for spec in declared() if spec.name == instructions)
    flags = [*spec.options, "-O1", *(EMULATED if emulated else ()), *(["-static"] if runner else [])]

    def compile_program(target: Path) -> None:
        run_compiler([*flags, f"-I{SOURCES}", f"-I{HERE}", str(HERE / source), "-o", str(target)])

    sources = [file.read_text() for folder in (SOURCES, HERE) for file in sorted(folder.glob("*.[hc]*"))]
    program = built(Path(source).stem, sha256(repr([source, flags, sources]).encode()).hexdigest(), compile_program)
    return subprocess.run([*runner, str(program)], capture_output=True, text=True, check=False).stdout.strip()
