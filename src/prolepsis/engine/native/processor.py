"""The instruction sets of this processor that the kernels are built for."""

import hashlib
import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING

from prolepsis import __version__
from prolepsis.core.files import cache_directory

if TYPE_CHECKING:
    from prolepsis_kernels import BuildSpec


def variants() -> "tuple[BuildSpec, ...]":
    """Return the builds of the forward for this kind of processor, the fastest first."""
    from prolepsis_kernels import declared

    return tuple(spec for spec in declared() if spec.machine == platform.machine())


def processor_flags() -> frozenset[str]:
    """Return the processor's feature flags as Linux names them; empty elsewhere."""
    return frozenset((_fact("flags") or _fact("Features")).split())


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


def instruction_sets(flags: frozenset[str]) -> tuple[str, ...]:
    """Return the names of the variants that a processor with these feature flags runs, the fastest first."""
    return tuple(spec.name for spec in variants() if spec.needs <= flags)


def default_threads() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def machine_file(folder: str, fingerprint: str, threads: int, *others: str) -> Path:
    """Return the file that keeps a result about a model on this machine (self-check, cost of a pass) between starts.

    Another processor, software version or value of `others` has another file. Machines that share a cache share what
    they measured on the same processor: the name of a pod is new with each start.
    """
    import torch

    machine = (platform.machine(), processor_name())
    parts = (fingerprint, str(threads), *machine, torch.__version__, __version__, *others)
    return cache_directory() / folder / f"{hashlib.sha256(':'.join(parts).encode()).hexdigest()[:16]}.json"
