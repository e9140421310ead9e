"""The AMX product runs on emulated tiles everywhere, so its indexing is checked on machines without AMX too."""

import os
import subprocess
from pathlib import Path

import pytest

from prolepsis.native.build import SOURCES, compiler_missing
from prolepsis.native.processor import AMX_BF16, instruction_sets, processor_flags

HERE = Path(__file__).parent
AROUND = [found for found in instruction_sets(processor_flags()) if found is not AMX_BF16]
"""What the sources around the product can be compiled for here."""


@pytest.mark.skipif(compiler_missing() is not None, reason=f"{compiler_missing()}")
@pytest.mark.skipif(not AROUND, reason="the sources around it need avx2")
def test_every_row_count_matches_a_plain_product(tmp_path: Path) -> None:
    program = tmp_path / "amx_product"
    compiler = os.environ.get("CXX", "c++")
    flags = ["-std=c++20", "-O1", *AROUND[0].flags, f"-I{SOURCES}", f"-I{HERE}"]
    subprocess.run([compiler, *flags, str(HERE / "amx_product.cpp"), "-o", str(program)], check=True)
    finished = subprocess.run([str(program)], capture_output=True, text=True, check=False)
    assert finished.stdout.strip() == "ok"
