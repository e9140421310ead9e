"""Compiles C++ once per source, compiler and instruction set, and keeps the results in the user's cache directory."""

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from prolepsis.core.files import cache_directory, exclusive
from prolepsis.core.phases import phase

if TYPE_CHECKING:
    from prolepsis_kernels import BuildSpec

log = structlog.get_logger(__name__)

compile_seconds: list[float] = []
"""Duration of each compilation in this process; compiled code is shared by all engines of the process."""


def compiler_missing() -> str | None:
    """Return the reason if nothing can be compiled on this machine, else None."""
    name = compiler()[0]
    return None if shutil.which(name) else f"no C++ compiler on this machine: {name} is not found (CXX names another)"


def compiler() -> list[str]:
    """Return the command of the C++ compiler: that of the environment variable CXX, or c++."""
    return shlex.split(os.environ.get("CXX", "")) or ["c++"]


def compiled(spec: "BuildSpec") -> Path:
    """Return the library that was compiled here, or compile it.

    Raises `RuntimeError` with the compiler's output, or where there is neither a build nor a compiler.
    """

    def compile_and_link(target: Path) -> None:
        options = [*spec.options, f'-DPROLEPSIS_SOURCES="{spec.sources_hash}"']
        objects = [str(target.with_name(f"{file}.o")) for file in spec.files]
        files = zip(spec.files, objects, strict=True)
        with ThreadPoolExecutor() as compilers:
            jobs = [[*options, "-c", str(spec.folder / file), "-o", to] for file, to in files]
            list(compilers.map(run_compiler, jobs))
        run_compiler([*objects, *spec.links, "-o", str(target)])

    return built(f"{spec.name}.so", _key_of(spec), compile_and_link)


def compilable(spec: "BuildSpec") -> Path:
    """Return the file that `compiled` would return, which need not be there; raises `RuntimeError` where it would."""
    return _kept(f"{spec.name}.so", _key_of(spec))


def _key_of(spec: "BuildSpec") -> str:
    """Return a hash, in hexadecimal, of sources, options and kind of machine."""
    parts = (spec.sources_hash, *spec.options, *spec.files, *spec.links, platform.machine())
    return hashlib.sha256("".join(f"{part}\0" for part in parts).encode()).hexdigest()


def _kept(name: str, key: str) -> Path:
    """Return where the file `name` of `key` is kept: by compiler, or without one the newest that any compiler made.

    Raises `RuntimeError` where there is no compiler and no such file.
    """
    folder = cache_directory() / "native" / key[:16]
    if (missing := compiler_missing()) is None:
        version = subprocess.run([*compiler(), "--version"], capture_output=True, check=True).stdout  # noqa: S603
        return folder / hashlib.sha256(version).hexdigest()[:8] / name
    files = sorted(folder.glob(f"*/{name}"), key=lambda file: file.stat().st_mtime)
    if not files:
        raise RuntimeError(missing)
    return files[-1]


def built(name: str, key: str, make: Callable[[Path], None]) -> Path:
    """Return the file `name` that is kept under `key`; if there is none, `make` writes it to the given path.

    One process builds at a time, in a folder of its own; a build that is killed leaves no usable file. Raises
    `RuntimeError` where there is neither a file nor a compiler.
    """
    kept = _kept(name, key)
    if kept.is_file():
        return kept
    with exclusive(kept.parent.with_suffix(".lock")):
        if kept.is_file():
            return kept
        log.info("native_compile_started", file=name, compiler=" ".join(compiler()), reason=f"{kept} is missing")
        started = time.monotonic()
        staging = kept.parent.with_suffix(".partial")
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir()
        with phase(f"compiling {name.removesuffix('.so')}"):
            make(staging / name)
        kept.parent.mkdir(exist_ok=True)
        (staging / name).replace(kept)
        shutil.rmtree(staging)
        compile_seconds.append(time.monotonic() - started)
        log.info("native_compile_finished", file=name, seconds=round(compile_seconds[-1], 1))
    return kept


def run_compiler(arguments: Sequence[str]) -> None:
    result = subprocess.run([*compiler(), *arguments], capture_output=True, text=True, check=False)  # noqa: S603
    if result.returncode:
        raise RuntimeError(f"{' '.join(compiler())} failed with status {result.returncode}:\n{result.stderr.strip()}")
