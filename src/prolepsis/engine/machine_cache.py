"""Results about a model on this machine (self-check, cost of a pass), cached in files for the next start."""

import hashlib
import platform
from pathlib import Path

import torch

from prolepsis import __version__
from prolepsis.core.files import cache_directory
from prolepsis.engine.native.processor import processor_name


def machine_file(folder: str, fingerprint: str, threads: int, *others: str) -> Path:
    """Return the cache file for a model; another processor, software version or value of `others` has another file."""
    machine = (platform.machine(), platform.node(), processor_name())
    parts = (fingerprint, str(threads), *machine, torch.__version__, __version__, *others)
    return cache_directory() / folder / f"{hashlib.sha256(':'.join(parts).encode()).hexdigest()[:16]}.json"
