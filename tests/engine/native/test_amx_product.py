"""The AMX product runs on emulated tiles everywhere, so its indexing is checked on machines without AMX too."""

from prolepsis.engine.native.processor import AVX2_FMA
from tests.engine.native.programs import needs_compiler, output_of


@needs_compiler
def test_every_row_count_matches_a_plain_product() -> None:
    assert output_of("amx_product.cpp", AVX2_FMA, emulated=True) == "ok"
