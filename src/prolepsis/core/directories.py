"""Where Prolepsis keeps its files: what it can fetch, build or measure again, and what it cannot."""

import os
from pathlib import Path


def cache_directory() -> Path:
    """Return the user's cache directory of Prolepsis (`PROLEPSIS_CACHE`, else XDG)."""
    base = os.environ.get("PROLEPSIS_CACHE")
    if base:
        return Path(base)
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "prolepsis"


def data_directory() -> Path:
    """Return the user's data directory of Prolepsis (`PROLEPSIS_DATA`, else XDG)."""
    base = os.environ.get("PROLEPSIS_DATA")
    if base:
        return Path(base)
    return Path(os.environ.get("XDG_DATA_HOME", Path.home() / ".local" / "share")) / "prolepsis"
