"""The AMX product runs on emulated tiles everywhere, so its indexing is checked on machines without AMX too."""

from pathlib import Path

from prolepsis.native.processor import AVX2_FMA
from tests.native.programs import needs_compiler, output_of


@needs_compiler
def test_every_row_count_matches_a_plain_product(tmp_path: Path) -> None:
    assert output_of("amx_product.cpp", AVX2_FMA, tmp_path, emulated=True) == "ok"
