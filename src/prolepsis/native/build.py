"""Builds C++ extensions once with torch's extension loader and keeps them in the user's cache directory."""

import fcntl
import hashlib
import os
import shutil
from pathlib import Path
from types import ModuleType

import structlog

from prolepsis.core.files import cache_directory

log = structlog.get_logger(__name__)

SOURCES = Path(__file__).parent


def compiler_missing() -> str | None:
    """Say why nothing can be built here, or None."""
    if shutil.which(os.environ.get("CXX", "c++")) is None:
        return "no C++ compiler on this machine"
    if shutil.which("ninja") is None and _bundled_ninja() is None:
        return "ninja is not installed"
    return None


def load_extension(name: str, files: tuple[str, ...], flags: tuple[str, ...] = ()) -> ModuleType:
    """Build (once) and import the extension `name` from C++ `files` of this package.

    The build is kept under a hash of sources, flags and torch version, so a changed source is a new build and a
    restart loads the old one at once. Raises `RuntimeError` with the compiler's output when it cannot be built.
    """
    import torch
    from torch.utils import cpp_extension

    digest = hashlib.sha256(torch.__version__.encode())
    for part in (*flags, *((SOURCES / f).read_text() for f in sorted(p.name for p in SOURCES.glob("*.[hc]*")))):
        digest.update(part.encode())
    directory = cache_directory() / "native" / f"{name}-{digest.hexdigest()[:16]}"
    directory.mkdir(parents=True, exist_ok=True)
    if (bundled := _bundled_ninja()) and shutil.which("ninja") is None:
        os.environ["PATH"] = f"{bundled}{os.pathsep}{os.environ.get('PATH', '')}"
    with (directory / "owner").open("w") as owner:
        fcntl.flock(owner, fcntl.LOCK_EX)  # released by the kernel, whatever ends this process
        (directory / "lock").unlink(
            missing_ok=True
        )  # torch's own lock outlives a killed build, which then waits for ever
        module: ModuleType = cpp_extension.load(
            name=f"{name}_{digest.hexdigest()[:8]}",
            sources=[str(SOURCES / f) for f in files],
            extra_cflags=["-O3", "-std=c++20", "-fno-math-errno", *flags],
            build_directory=str(directory),
        )
    return module


def _bundled_ninja() -> str | None:
    try:
        import ninja
    except ImportError:
        return None
    return str(ninja.BIN_DIR)
