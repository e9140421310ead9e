"""Templates, and how they show values: counts, shares, times and amounts, each with its unit."""

import math
import time
from collections.abc import Mapping
from datetime import UTC, datetime

from jinja2 import Environment, PackageLoader, StrictUndefined

UNKNOWN = "–"
"""In place of a value that is not known."""
_AGES = ((60.0, "s"), (60.0, "min"), (24.0, "h"), (float("inf"), "d"))
_SIZES = ("B", "KB", "MB", "GB", "TB")


def environment() -> Environment:
    """Return the console's templates; what they insert is escaped, and a missing value is an error."""
    made = Environment(
        loader=PackageLoader("prolepsis.console"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    shown = (count, share, seconds, age, moment, size, amount, number, plain, words)
    made.filters |= {one.__name__: one for one in shown}
    return made


def count(value: float | None) -> str:
    """Return a whole number with groups of three."""
    return UNKNOWN if value is None else f"{value:,.0f}".replace(",", "\u202f")


def number(value: float | None, digits: int = 2) -> str:
    return UNKNOWN if value is None else f"{value:,.{digits}f}".replace(",", "\u202f")


def share(value: float | None, digits: int = 1) -> str:
    """Return a share of 1 in percent."""
    return UNKNOWN if value is None else f"{100 * value:.{digits}f}\u202f%"


def seconds(value: float | None) -> str:
    """Return a duration in the unit that suits it."""
    if value is None:
        return UNKNOWN
    if abs(value) < 1.0:
        return f"{1000 * value:.3g}\u202fms" if abs(value) >= 1e-6 else "0\u202fms"
    return f"{value:.3g}\u202fs" if abs(value) < 120.0 else _in_steps(value)


def age(at: float | None) -> str:
    """Return how long ago a Unix time was."""
    return UNKNOWN if at is None else f"{_in_steps(max(0.0, time.time() - at))} ago"


def _in_steps(left: float) -> str:
    for most, unit in _AGES:
        if left < 2 * most:
            return f"{left:.0f}\u202f{unit}"
        left /= most
    raise AssertionError("the last unit has no end")


def moment(at: float | str | None) -> str:
    """Return a time, given as Unix time or as ISO text, in UTC to the second."""
    if at is None:
        return UNKNOWN
    read = datetime.fromisoformat(at) if isinstance(at, str) else datetime.fromtimestamp(at, UTC)
    return f"{read.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def size(value: float | None) -> str:
    """Return a number of bytes."""
    if value is None:
        return UNKNOWN
    unit = 0
    while value >= 1000.0 and unit + 1 < len(_SIZES):
        value, unit = value / 1000.0, unit + 1
    return f"{value:.3g}\u202f{_SIZES[unit]}"


def amount(value: float | None, currency: str | None) -> str:
    """Return an amount of money: to three digits that count, below a cent to two, and to cents at least."""
    if value is None:
        return UNKNOWN
    counting = 3 if abs(value) >= 0.01 else 2
    digits = max(2, counting - 1 - math.floor(math.log10(abs(value)))) if value else 2
    return f"{number(value, min(digits, 9))}\u202f{currency or ''}".strip()


def plain(value: object) -> str:
    """Return a value of a policy or of an audit entry as text on one line; what is not given is left out."""
    if value is None or value == "":
        return UNKNOWN
    if isinstance(value, Mapping):
        return ", ".join(f"{words(str(name))} {plain(one)}" for name, one in value.items() if one is not None)
    if isinstance(value, list | tuple):
        return ("; " if any(isinstance(one, Mapping) for one in value) else ", ").join(map(plain, value))
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value)


def words(name: str) -> str:
    """Return a name such as no_draft as people read it."""
    return name.replace("_", " ")
