"""The instruction sets of this processor that the kernels are built for."""

import hashlib
import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from prolepsis import __version__
from prolepsis.core.files import cache_directory

if TYPE_CHECKING:
    from prolepsis_kernels import BuildSpec


@dataclass(frozen=True, slots=True)
class InstructionSet:
    """A name for reports, the compiler flags that select it, and the processor's feature flags that it needs."""

    name: str
    flags: tuple[str, ...]
    needs: frozenset[str]


AVX2_FMA = InstructionSet("avx2", ("-mavx2", "-mfma", "-mf16c"), frozenset({"avx2", "fma", "f16c"}))
AVX_VNNI = InstructionSet("avx_vnni", (*AVX2_FMA.flags, "-mavxvnni"), AVX2_FMA.needs | {"avx_vnni"})
AVX512_VNNI = InstructionSet(
    "avx512_vnni",
    ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni", "-mfma"),
    frozenset({"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni", "fma"}),
)
AVX512_BF16 = InstructionSet("avx512_bf16", (*AVX512_VNNI.flags, "-mavx512bf16"), AVX512_VNNI.needs | {"avx512_bf16"})
AMX_BF16 = InstructionSet(
    "amx_bf16",
    (*AVX512_BF16.flags, "-mamx-tile", "-mamx-bf16", "-mamx-int8", "-DPROLEPSIS_AMX"),
    AVX512_BF16.needs | {"amx_tile", "amx_bf16", "amx_int8"},
)
FASTEST_FIRST = (AMX_BF16, AVX512_BF16, AVX512_VNNI, AVX_VNNI, AVX2_FMA)


def variants() -> "tuple[BuildSpec, ...]":
    """Return the builds of the forward for this kind of processor, the fastest first."""
    from prolepsis_kernels import declared

    return tuple(spec for spec in declared() if spec.machine == platform.machine())


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
    facts = (line.partition(":") for line in text.splitlines())
    return next((value.strip() for key, _, value in facts if key.strip() == name), "")


def instruction_sets(flags: frozenset[str]) -> tuple[InstructionSet, ...]:
    """Return the supported instruction sets among `flags`, the fastest first."""
    return tuple(instruction_set for instruction_set in FASTEST_FIRST if instruction_set.needs <= flags)


def describe_missing() -> str:
    return f"this processor ({platform.machine()}) lacks avx2, fma or f16c"


def default_threads() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def machine_file(folder: str, fingerprint: str, threads: int, *others: str) -> Path:
    """Return the file that keeps a result about a model on this machine (self-check, cost of a pass) between starts.

    Another processor, software version or value of `others` has another file.
    """
    import torch

    machine = (platform.machine(), platform.node(), processor_name())
    parts = (fingerprint, str(threads), *machine, torch.__version__, __version__, *others)
    return cache_directory() / folder / f"{hashlib.sha256(':'.join(parts).encode()).hexdigest()[:16]}.json"
