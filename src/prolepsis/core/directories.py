"""Where Prolepsis keeps what it can fetch, build or measure again."""

import os
from pathlib import Path


def cache_directory() -> Path:
    """Return the user's cache directory of Prolepsis (`PROLEPSIS_CACHE`, else XDG)."""
    base = os.environ.get("PROLEPSIS_CACHE")
    if base:
        return Path(base)
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "prolepsis"
