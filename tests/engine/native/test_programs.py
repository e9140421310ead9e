"""C++ programs around the kernels pass, and instruction sets are found as the processor names them."""

import pytest

from prolepsis.engine.native.bandwidth import read_bandwidth
from prolepsis.engine.native.processor import (
    AMX_BF16,
    AVX2_FMA,
    AVX512_BF16,
    AVX512_VNNI,
    AVX_VNNI,
    InstructionSet,
    instruction_sets,
)
from tests.engine.native.programs import BUILDS, WITH_BYTES, needs_compiler, output_of


@needs_compiler
def test_every_row_count_matches_a_plain_product() -> None:
    assert output_of("amx_product.cpp", AVX2_FMA, emulated=True) == "ok"


@needs_compiler
@pytest.mark.parametrize(("instructions", "emulated"), BUILDS.values(), ids=BUILDS)
def test_chains_and_trees_are_as_token_by_token(instructions: InstructionSet, emulated: bool) -> None:
    assert output_of("attention.cpp", instructions, emulated=emulated) == "ok"


@needs_compiler
@pytest.mark.parametrize(("instructions", "emulated"), WITH_BYTES.values(), ids=WITH_BYTES)
def test_every_row_count_is_a_plain_sum(instructions: InstructionSet, emulated: bool) -> None:
    assert output_of("int8_product.cpp", instructions, emulated=emulated) == "ok"


def test_reading_takes_time_and_is_not_slow() -> None:
    assert 1e8 < read_bandwidth(1 << 24, threads=1, seconds=0.01) < 1e12
    assert read_bandwidth(1, threads=2, seconds=0.0) > 0


WITH_AVX2 = frozenset(["avx2", "fma", "f16c"])
WITH_AVX512 = WITH_AVX2 | {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_bf16", "avx512_vnni"}


def test_the_fastest_comes_first() -> None:
    every = WITH_AVX512 | {"amx_tile", "amx_bf16", "amx_int8", "avx_vnni"}
    assert instruction_sets(every) == (AMX_BF16, AVX512_BF16, AVX512_VNNI, AVX_VNNI, AVX2_FMA)


def test_avx512_without_amx() -> None:
    expected = (AVX512_BF16, AVX512_VNNI, AVX2_FMA)
    assert instruction_sets(WITH_AVX512) == expected
    assert instruction_sets(WITH_AVX512 | {"amx_tile"}) == expected
    assert instruction_sets(WITH_AVX512 | {"amx_tile", "amx_bf16"}) == expected


def test_avx512_without_bf16_multiplies_bytes() -> None:
    assert instruction_sets(WITH_AVX512 - {"avx512_bf16"}) == (AVX512_VNNI, AVX2_FMA)


def test_avx512_without_vnni_is_served_by_avx2() -> None:
    assert instruction_sets(WITH_AVX512 - {"avx512_vnni"}) == (AVX2_FMA,)
    assert instruction_sets(WITH_AVX512 - {"avx512_bf16", "avx512_vnni"}) == (AVX2_FMA,)


def test_avx2_with_vnni() -> None:
    assert instruction_sets(WITH_AVX2 | {"avx_vnni"}) == (AVX_VNNI, AVX2_FMA)


def test_no_native_forward_without_avx2() -> None:
    assert instruction_sets(frozenset(["avx", "fma"])) == ()
    assert instruction_sets(frozenset()) == ()
