"""The choice of kernels follows the processor's flags."""

from prolepsis.engine.native.processor import AMX_BF16, AVX2_FMA, AVX512_BF16, AVX512_VNNI, AVX_VNNI, instruction_sets

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
