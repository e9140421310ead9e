"""The instruction sets of this processor that the kernels are built for."""

import os
import platform
from dataclasses import dataclass
from pathlib import Path

AVX2 = ("-mavx2", "-mfma", "-mf16c")
AVX512 = ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni", "-mfma")
BF16 = ("-mavx512bf16",)
AMX = ("-mamx-tile", "-mamx-bf16", "-mamx-int8", "-DPROLEPSIS_AMX")


@dataclass(frozen=True, slots=True)
class InstructionSet:
    """A name for reports and the compiler flags that select it."""

    name: str
    flags: tuple[str, ...]


AVX2_FMA = InstructionSet("avx2", AVX2)
AVX_VNNI = InstructionSet("avx_vnni", (*AVX2, "-mavxvnni"))
AVX512_VNNI = InstructionSet("avx512_vnni", AVX512)
AVX512_BF16 = InstructionSet("avx512_bf16", AVX512 + BF16)
AMX_BF16 = InstructionSet("amx_bf16", AVX512 + BF16 + AMX)


def processor_flags() -> frozenset[str]:
    """Return the processor's feature flags as Linux names them; empty elsewhere."""
    return frozenset(_fact("flags").split())


def processor_name() -> str:
    """Return the processor's name as Linux states it; what Python knows of it elsewhere."""
    return _fact("model name") or platform.processor()


def _fact(name: str) -> str:
    """Return the value of `name` for the first core in /proc/cpuinfo; empty if there is none."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return ""
    found = (line.partition(":") for line in text.splitlines())
    return next((value.strip() for key, _, value in found if key.strip() == name), "")


def instruction_sets(flags: frozenset[str]) -> tuple[InstructionSet, ...]:
    """Return the supported instruction sets among `flags`, the fastest first."""
    avx2 = {"avx2", "fma", "f16c"}
    avx512 = {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni", "fma"}
    bf16 = avx512 | {"avx512_bf16"}
    needs = {
        AMX_BF16: bf16 | {"amx_tile", "amx_bf16", "amx_int8"},
        AVX512_BF16: bf16,
        AVX512_VNNI: avx512,
        AVX_VNNI: avx2 | {"avx_vnni"},
        AVX2_FMA: avx2,
    }
    return tuple(found for found, needed in needs.items() if needed <= flags)


def describe_missing() -> str:
    """Say which instruction sets the native forward needs."""
    return f"this processor ({platform.machine()}) lacks avx2, fma or f16c"


def default_threads() -> int:
    """Return the number of cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
