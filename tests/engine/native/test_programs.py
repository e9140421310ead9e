"""C++ programs around the kernels pass, and instruction sets are found as the processor names them."""

import shutil

import pytest

from prolepsis.engine.native.bandwidth import read_bandwidth
from prolepsis.engine.native.processor import instruction_sets
from tests.engine.native.programs import ARM_COMPILER, ARM_EMULATOR, BUILDS, WITH_BYTES, needs_compiler, output_of


@needs_compiler
def test_every_row_count_matches_a_plain_product() -> None:
    assert output_of("amx_product.cpp", "avx2", emulated=True) == "ok"


@needs_compiler
@pytest.mark.parametrize(("instructions", "emulated"), BUILDS.values(), ids=BUILDS)
def test_chains_and_trees_are_as_token_by_token(instructions: str, emulated: bool) -> None:
    assert output_of("attention.cpp", instructions, emulated=emulated) == "ok"


@needs_compiler
@pytest.mark.parametrize(("instructions", "emulated"), WITH_BYTES.values(), ids=WITH_BYTES)
def test_every_row_count_is_a_plain_sum(instructions: str, emulated: bool) -> None:
    assert output_of("int8_product.cpp", instructions, emulated=emulated) == "ok"


@pytest.mark.night
@pytest.mark.parametrize("source", ["attention.cpp", "int8_product.cpp"])
def test_an_arm_processor_computes_the_same(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Emulated by qemu; AVX2's code runs there through SIMDe."""
    for tool in (ARM_COMPILER, ARM_EMULATOR):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed (Debian: g++-aarch64-linux-gnu, qemu-user, libsimde-dev)")
    monkeypatch.setenv("CXX", ARM_COMPILER)
    assert output_of(source, "armv8_dotprod", runner=[ARM_EMULATOR]) == "ok"


def test_reading_takes_time_and_is_not_slow() -> None:
    assert 1e8 < read_bandwidth(1 << 24, threads=1, seconds=0.01) < 1e12
    assert read_bandwidth(1, threads=2, seconds=0.0) > 0


WITH_AVX2 = frozenset(["avx2", "fma", "f16c"])
WITH_AVX512 = WITH_AVX2 | {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_bf16", "avx512_vnni"}


def test_the_fastest_comes_first() -> None:
    every = WITH_AVX512 | {"amx_tile", "amx_bf16", "amx_int8", "avx_vnni"}
    assert instruction_sets(every) == ("amx_bf16", "avx512_bf16", "avx512_vnni", "avx_vnni", "avx2")


def test_avx512_without_amx() -> None:
    expected = ("avx512_bf16", "avx512_vnni", "avx2")
    assert instruction_sets(WITH_AVX512) == expected
    assert instruction_sets(WITH_AVX512 | {"amx_tile"}) == expected
    assert instruction_sets(WITH_AVX512 | {"amx_tile", "amx_bf16"}) == expected


def test_avx512_without_bf16_multiplies_bytes() -> None:
    assert instruction_sets(WITH_AVX512 - {"avx512_bf16"}) == ("avx512_vnni", "avx2")


def test_avx512_without_vnni_is_served_by_avx2() -> None:
    assert instruction_sets(WITH_AVX512 - {"avx512_vnni"}) == ("avx2",)
    assert instruction_sets(WITH_AVX512 - {"avx512_bf16", "avx512_vnni"}) == ("avx2",)


def test_avx2_with_vnni() -> None:
    assert instruction_sets(WITH_AVX2 | {"avx_vnni"}) == ("avx_vnni", "avx2")


def test_no_native_forward_without_avx2() -> None:
    assert instruction_sets(frozenset(["avx", "fma"])) == ()
    assert instruction_sets(frozenset()) == ()
