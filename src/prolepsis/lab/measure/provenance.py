"""The provenance of figures: commit, command, versions, hardware, seeds."""

import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import prolepsis
from prolepsis.engine.native.processor import default_threads, processor_flags, processor_name

PACKAGES = ("torch", "transformers", "tokenizers", "numpy")


def provenance(seeds: Mapping[str, int], more_versions: Mapping[str, str]) -> dict[str, object]:
    """Return the provenance of a measurement made now by this process."""
    return {
        "commit": commit(Path(prolepsis.__file__).parent),
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {"prolepsis": prolepsis.__version__, **versions(PACKAGES), **more_versions},
        "hardware": hardware(),
        "seeds": dict(seeds),
    }


def commit(folder: Path) -> str | None:
    """Return the commit of the checkout `folder` lies in, with '-dirty' where files differ; None outside one."""
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],  # noqa: S607
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return described.stdout.strip()


def versions(packages: Sequence[str]) -> dict[str, str]:
    """Return versions of this Python and of those `packages` that are installed."""
    known = {"python": platform.python_version()}
    for package in packages:
        try:
            known[package] = version(package)
        except PackageNotFoundError:
            continue
    return known


def hardware() -> dict[str, object]:
    """Return processor, its cores usable here, the instructions that matter to speed, memory in bytes, system."""
    return {
        "processor": processor_name() or platform.machine(),
        "cores": default_threads(),
        "instructions": sorted(
            processor_flags() & {"avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_tile"}
        ),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": platform.platform(),
    }
