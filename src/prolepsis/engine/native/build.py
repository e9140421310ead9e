"""Compiles C++ once per source, compiler and instruction set, and keeps the results in the user's cache directory."""

import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import structlog
from prolepsis_kernels import SOURCES

from prolepsis.core.files import cache_directory, exclusive

if TYPE_CHECKING:
    from prolepsis_kernels import BuildSpec

log = structlog.get_logger(__name__)

compile_seconds: list[float] = []
"""Duration of each compilation in this process; compiled code is shared by all engines of the process."""
_OPTIONS = ("-O3", "-std=c++20", "-fno-math-errno", "-fPIC")
_LIBRARIES = ("-lc10", "-ltorch_cpu", "-ltorch", "-ltorch_python")


def compiler_missing() -> str | None:
    """Return the reason if nothing can be compiled on this machine, else None."""
    name = compiler()[0]
    return None if shutil.which(name) else f"no C++ compiler on this machine: {name} is not found (CXX names another)"


def compiler() -> list[str]:
    """Return the command of the C++ compiler: that of the environment variable CXX, or c++."""
    return shlex.split(os.environ.get("CXX", "")) or ["c++"]


def load_extension(name: str, files: Sequence[str], flags: Sequence[str] = (), *, folder: Path = SOURCES) -> ModuleType:
    """Import the extension `name` of the C++ `files` in `folder`; it is compiled first if there is no build of it yet.

    Raises `RuntimeError` with the compiler's output if it cannot be compiled.
    """
    import torch

    options = (*_OPTIONS, *flags)
    versions = (torch.__version__, str(sysconfig.get_config_var("SOABI")))
    key = build_key((*options, *files, *versions), folder.glob("*.[hc]*"))
    module = f"{name}_{key[:8]}"

    def compile_and_link(target: Path) -> None:
        objects = [str(target.with_name(f"{file}.o")) for file in files]
        includes, libraries = _torch_paths()
        common = [*options, f"-DTORCH_EXTENSION_NAME={module}", *includes]
        with ThreadPoolExecutor() as compilers:
            jobs = [[*common, "-c", str(folder / file), "-o", to] for file, to in zip(files, objects, strict=True)]
            list(compilers.map(run_compiler, jobs))
        run_compiler(["-shared", *objects, *libraries, "-o", str(target)])

    library = built(f"{module}.so", key, compile_and_link)
    spec = importlib.util.spec_from_file_location(module, library)
    assert spec is not None, "a path that ends in .so has a loader"
    assert spec.loader is not None, "a path that ends in .so has a loader"
    extension = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(extension)
    return extension


def load_if_possible(name: str, files: Sequence[str], flags: Sequence[str] = ()) -> ModuleType | None:
    """Do `load_extension`; where that fails, warn and return None."""
    reason = compiler_missing()
    if reason is None:
        try:
            return load_extension(name, files, flags)
        except (OSError, RuntimeError, ImportError) as error:
            reason = str(error)
    log.warning("kernel_missing", kernel=name, reason=reason)
    return None


@cache
def draft_kernel() -> ModuleType | None:
    """Return `drafts.cpp`, built and loaded once for the process; None where that is not possible.

    It offers `SequenceIndex`, `SharedIndex` and `propose` as `engine.drafting.proposers.suffix_index` has them, and
    `merge(tokens, parents, survivals, the same of another draft, limit)`, which returns those of the merged draft, and
    for each of its nodes which one of the nodes of both it was (`engine.drafting.candidate`).
    """
    return load_if_possible("drafts", ("drafts.cpp",), ("-ffp-contract=off",))


def compiled(spec: "BuildSpec") -> Path:
    """Return the library that was compiled here, or compile it.

    Raises `RuntimeError` with the compiler's output, or where there is neither a build nor a compiler.
    """

    def compile_and_link(target: Path) -> None:
        objects = [str(target.with_name(f"{file}.o")) for file in spec.files]
        with ThreadPoolExecutor() as compilers:
            jobs = zip(spec.files, objects, strict=True)
            includes, libraries = _torch_paths()
            options = [
                *spec.options,
                "-fopenmp",
                *includes,
                f"-DTORCH_EXTENSION_NAME={spec.name}",
                f'-DPROLEPSIS_SOURCES="{spec.sources_hash}"',
            ]
            list(
                compilers.map(lambda job: run_compiler([*options, "-c", str(spec.folder / job[0]), "-o", job[1]]), jobs)
            )
        run_compiler([*objects, *spec.links, *libraries, "-o", str(target)])

    return built(f"{spec.name}.so", _key_of(spec), compile_and_link)


def compilable(spec: "BuildSpec") -> Path:
    """Return the file that `compiled` would return, which need not be there; raises `RuntimeError` where it would."""
    return _kept(f"{spec.name}.so", _key_of(spec))


def _key_of(spec: "BuildSpec") -> str:
    return build_key((spec.sources_hash, *spec.options, *spec.files, *spec.links), ())


def build_key(parts: Iterable[str], sources: Iterable[Path]) -> str:
    """Return a hash, in hexadecimal, of options, sources and kind of machine."""
    digest = hashlib.sha256()
    for part in (*parts, platform.machine()):
        digest.update(part.encode() + b"\0")
    for source in sorted(sources):
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    return digest.hexdigest()


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


def _torch_paths() -> tuple[list[str], list[str]]:
    import torch

    root = Path(torch.__file__).parent
    headers = (root / "include", root / "include/torch/csrc/api/include", Path(sysconfig.get_paths()["include"]))
    includes = ["-DTORCH_API_INCLUDE_EXTENSION_H", *(option for path in headers for option in ("-isystem", str(path)))]
    late = ["-undefined", "dynamic_lookup"] if sys.platform == "darwin" else []
    return includes, [f"-L{root / 'lib'}", *_LIBRARIES, *late]
