"""Chooses what runs of a kernel: the library that came with the package `prolepsis-kernels`, or one compiled here."""

import ctypes
import hashlib
import os
import platform
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Generic, TypeVar

import structlog
from prolepsis_kernels import LIBRARIES, BuildSpec, declared

from prolepsis.core.errors import ConfigError
from prolepsis.engine.native.build import compilable, compiled
from prolepsis.engine.native.library import Library
from prolepsis.engine.native.processor import processor_flags, variants

log = structlog.get_logger(__name__)

Loaded = TypeVar("Loaded")
Find = Callable[[BuildSpec], Path]
"""Returns a library's file. Raises `FileNotFoundError` where there is none, `RuntimeError` where none can be had."""


@dataclass(frozen=True, slots=True)
class ChosenKernel(Generic[Loaded]):
    """A library that runs here, where it comes from, and why each better one does not run."""

    library: Loaded
    name: str
    path: Path
    origin: str  # prebuilt | compiled here
    refused: tuple[str, ...]

    @property
    def identity(self) -> str:
        """A name for this code and no other: of the variant and the file's content."""
        return f"{self.name}-{hashlib.sha256(self.path.read_bytes()).hexdigest()[:16]}"

    def describe(self) -> str:
        reasons = "; ".join(self.refused)
        return f"{self.name}, {self.origin}" + (f" (not {reasons})" if reasons else "")


def choose(
    specs: Iterable[BuildSpec],
    ways: Mapping[str, Find],
    load: Callable[[Path], Loaded],
    fault: Callable[[Loaded], str | None],
) -> ChosenKernel[Loaded]:
    """Return the first of `specs` that this processor runs, that can be had one of these ways, opens and has no fault.

    Raises `RuntimeError` with the reasons where there is none.
    """
    flags, refused = processor_flags(), list[str]()
    for spec in specs:
        if missing := spec.needs - flags:
            refused.append(f"{spec.name}: this processor lacks {', '.join(sorted(missing))}")
            continue
        for origin, find in ways.items():
            try:
                library = load(path := find(spec))
                reason = fault(library)
            except FileNotFoundError as error:
                reason = str(error)
            except (OSError, RuntimeError) as error:  # an older compiler may not know the instructions
                reason = str(error)
                log.warning("kernel_refused", kernel=spec.name, origin=origin, reason=reason)
            if reason is None:
                return ChosenKernel(library, spec.name, path, origin, tuple(refused))
            refused.append(f"{spec.name}, {origin}: {reason}")
    raise RuntimeError("; ".join(refused) or f"there are no kernels for {platform.machine()}")


def ways() -> Mapping[str, Find]:
    """Return the ways to a library, best first; raises `ConfigError` where PROLEPSIS_NATIVE has a value unknown."""
    wanted = os.environ.get("PROLEPSIS_NATIVE", "")
    if wanted not in ("", "build"):
        raise ConfigError(f"PROLEPSIS_NATIVE is {wanted!r}; allowed: build, which compiles the kernels here")
    return {"compiled here": compiled} if wanted else {"prebuilt": prebuilt, "compiled here": compiled}


def prebuilt(spec: BuildSpec) -> Path:
    """Return the library that came with the package; raises `RuntimeError` if it was made of other sources."""
    path = LIBRARIES / f"{spec.name}.so"
    if not path.is_file():
        raise FileNotFoundError("not in this installation")
    if (made_of := sources_of(path)) != (here := spec.sources_hash):
        raise RuntimeError(f"{path} is stale: made of sources {made_of[:12]}, here are {here[:12]}")
    return path


def sources_of(path: Path) -> str:
    """Return the hash of the sources that a library was built from, as it says itself."""
    function = ctypes.CDLL(str(path)).prolepsis_sources
    function.restype = ctypes.c_char_p
    return str(function().decode())


@cache
def common_library() -> Library | None:
    """Return the library of sampling and drafts, loaded once for the process; warn and return None where that fails."""
    try:
        return choose((spec for spec in declared() if spec.name == "common"), ways(), Library, lambda _: None).library
    except RuntimeError as error:
        log.warning("kernel_missing", kernel="common", reason=str(error))
        return None


def expected() -> ChosenKernel[Path]:
    """Return what a start would run, without a check of its results, and without compiling."""
    there = {name: compilable if find is compiled else find for name, find in ways().items()}
    return choose(variants(), there, lambda path: path, lambda _: None)
