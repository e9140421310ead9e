"""Formats times and sizes in a suitable unit, for people."""

import math

_TIMES = (("d", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3), ("µs", 1e-6))
_SIZES = ("B", "KiB", "MiB", "GiB")


def in_unit_of_time(seconds: float) -> tuple[float, str]:
    """Return a time in the largest unit of which it has one, above the second two."""
    fitting = ((size, unit) for unit, size in _TIMES if abs(seconds) >= (2 if size > 1 else 1) * size)
    size, unit = next(fitting, (1.0, "s"))
    return seconds / size, unit


def duration(seconds: float) -> str:
    """Return a time as text; one without an end is "never"."""
    if math.isinf(seconds):
        return "never"
    value, unit = in_unit_of_time(seconds)
    return f"{_three_digits(value)} {unit}"


def size(num_bytes: float) -> str:
    """Return an amount of memory as text."""
    unit = 0
    while abs(num_bytes) >= 1024 and unit + 1 < len(_SIZES):
        num_bytes, unit = num_bytes / 1024, unit + 1
    return f"{_three_digits(num_bytes)} {_SIZES[unit]}"


def figure(value: float, digits: int = 3) -> str:
    """Return a number with this many significant digits, or all before the point; never with an exponent."""
    if not math.isfinite(value) or not value:
        return f"{value:g}"
    text = f"{value:.{max(0, digits - 1 - math.floor(math.log10(abs(value))))}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _three_digits(value: float) -> str:
    """Return a number to three digits, or to all before the point."""
    return f"{value:.0f}" if abs(value) >= 999.5 else f"{value:.3g}"
