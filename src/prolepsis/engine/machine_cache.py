"""Results about a model on this machine (self-check, cost of a pass), cached in files for the next start."""

import hashlib
import platform
from pathlib import Path

import structlog
import torch

from prolepsis import __version__
from prolepsis.core.files import cache_directory, replacing
from prolepsis.engine.native.processor import processor_name

log = structlog.get_logger(__name__)


def machine_file(folder: str, fingerprint: str, threads: int, *others: str) -> Path:
    """Return the cache file for a model; another processor, software version or value of `others` has another file."""
    machine = (platform.machine(), platform.node(), processor_name())
    parts = (fingerprint, str(threads), *machine, torch.__version__, __version__, *others)
    return cache_directory() / folder / f"{hashlib.sha256(':'.join(parts).encode()).hexdigest()[:16]}.json"


def read_cached(file: Path) -> str | None:
    """Return the text of `file`; None if there is none or it cannot be read, which is logged."""
    try:
        return file.read_text()
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        log.warning("kept_file_unreadable", file=str(file), error=str(error))
        return None


def write_cached(file: Path, text: str) -> None:
    """Write `file` atomically. If it cannot be written, the result is computed again at the next start."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(file) as part:
            part.write_text(text)
    except OSError as error:
        log.warning("not_kept", file=str(file), error=str(error))
