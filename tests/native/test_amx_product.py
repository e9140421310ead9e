"""The AMX product runs on emulated tiles everywhere, so its indexing is checked on machines without AMX too."""

import os
import subprocess
from pathlib import Path

import pytest

from prolepsis.native.build import SOURCES, compiler_missing
from prolepsis.native.processor import AVX512, pick_instruction_set, processor_flags

HERE = Path(__file__).parent


@pytest.mark.skipif(compiler_missing() is not None, reason=f"{compiler_missing()}")
@pytest.mark.skipif(pick_instruction_set(processor_flags()) is None, reason="the sources around it need avx512_bf16")
def test_every_row_count_matches_a_plain_product(tmp_path: Path) -> None:
    program = tmp_path / "amx_product"
    compiler = os.environ.get("CXX", "c++")
    flags = ["-std=c++20", "-O1", *AVX512, f"-I{SOURCES}", f"-I{HERE}"]
    subprocess.run([compiler, *flags, str(HERE / "amx_product.cpp"), "-o", str(program)], check=True)
    finished = subprocess.run([str(program)], capture_output=True, text=True, check=False)
    assert finished.stdout.strip() == "ok"
