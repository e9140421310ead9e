"""Products in 8 bits have the same bits on every instruction set, for any number of rows."""

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


@pytest.mark.skipif(compiler_missing() is not None, reason=f"{compiler_missing()}")
@pytest.mark.parametrize("emulated", [False, True])
@pytest.mark.parametrize("instructions", [AVX2_FMA, AVX512_BF16, AMX_BF16], ids=lambda found: found.name)
def test_every_row_count_is_a_plain_sum(instructions: InstructionSet, emulated: bool, tmp_path: Path) -> None:
    if instructions not in HERE_RUNS:
        pytest.skip("not an instruction set of this processor")
    if emulated and instructions is AMX_BF16:
        pytest.skip("this processor has the tiles themselves")
    program = tmp_path / "eight_bit_product"
    flags = ["-std=c++20", "-O1", *instructions.flags, *(EMULATED if emulated else ()), f"-I{SOURCES}", f"-I{HERE}"]
    compiler = os.environ.get("CXX", "c++")
    subprocess.run([compiler, *flags, str(HERE / "eight_bit_product.cpp"), "-o", str(program)], check=True)
    finished = subprocess.run([str(program)], capture_output=True, text=True, check=False)
    assert finished.stdout.strip() == "ok"
