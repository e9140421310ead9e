"""The choice of kernels follows the processor's flags."""

from prolepsis.native.processor import AMX_BF16, AVX512_BF16, pick_instruction_set

WITH_AVX512 = frozenset(["avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_bf16", "fma"])


def test_amx_is_taken_where_it_is() -> None:
    assert pick_instruction_set(WITH_AVX512 | {"amx_tile", "amx_bf16"}) is AMX_BF16


def test_avx512_without_amx() -> None:
    assert pick_instruction_set(WITH_AVX512) is AVX512_BF16
    assert pick_instruction_set(WITH_AVX512 | {"amx_tile"}) is AVX512_BF16


def test_nothing_of_ours_without_bf16() -> None:
    assert pick_instruction_set(WITH_AVX512 - {"avx512_bf16"}) is None
    assert pick_instruction_set(frozenset()) is None
