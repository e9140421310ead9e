"""The number of KV pages that fit a memory budget, decided once at start."""

import re

from prolepsis.core.errors import ConfigError, MemoryPlanError

_UNITS = {"": 1, "B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40, "KB": 10**3, "MB": 10**6, "GB": 10**9}
_AMOUNT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def parse_bytes(text: str, *, name: str = "kv_memory") -> int:
    """Return the bytes of an amount such as '768MiB' or '2GB'. Raises `ConfigError` naming what is allowed."""
    match = _AMOUNT.fullmatch(text)
    unit = _UNITS.get(match[2].upper()) if match else None
    if match is None or unit is None or float(match[1]) <= 0:
        raise ConfigError(f"{name} is {text!r}; allowed: a positive amount such as 768MiB or 2GiB", param=name)
    return int(float(match[1]) * unit)


def format_bytes(count: int) -> str:
    """Return `count` in the largest binary unit that keeps it at 1 or more, rounded up to a tenth."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{-(-count * 10 // size) / 10:g}{unit}"
    return f"{count}B"


def plan_pages(budget: str, *, page_bytes: int, page_size: int, max_model_len: int) -> int:
    """Return the number of pages that fit `budget`.

    Raises `MemoryPlanError` with the memory needed if one sequence of `max_model_len` tokens does not fit.
    """
    pages = parse_bytes(budget) // page_bytes
    needed = -(-max_model_len // page_size)
    if pages < needed:
        lower = f", or lower max_model_len to at most {pages * page_size}" if pages else ""
        raise MemoryPlanError(
            f"kv_memory {budget} holds {pages * page_size} tokens; one sequence of max_model_len {max_model_len} needs "
            f"{format_bytes(needed * page_bytes)}: raise kv_memory to that{lower}"
        )
    return pages
