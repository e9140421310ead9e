"""What a forecast advises, and what is missing where it is not known."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from prolepsis.lab.virtual_engine.machine import Machine

FEWEST_REQUESTS = 20
"""Requests that an advice needs, and a check of the forecasts that it believes."""
_LEAST_ERROR = 0.02
"""What a smaller error of a check counts as: that may be chance."""


@dataclass(frozen=True, slots=True)
class Advice:
    """Whether something is to be turned on."""

    mode: Literal["on", "off", "unknown"]
    why: str  # the gain; where it is unknown, what is missing

    def __str__(self) -> str:
        return f"not known: {self.why}" if self.mode == "unknown" else self.mode


def advice(
    num_requests: int,
    gains: Sequence[float],  # times as good with it as without, by each forecast
    machine: Machine,
    figures: Sequence[str],  # whose errors bound the gain
    not_measured: str | None = None,  # what the forecasts only extrapolate
) -> Advice:
    """Return on or off if the median gain, or loss, is larger than the error of the last check."""
    error, check = error_of(machine, figures), machine.checks.get("auto")
    if num_requests < FEWEST_REQUESTS:
        return Advice("unknown", f"{num_requests} requests of {FEWEST_REQUESTS}")
    if check is None or error is None:
        return Advice("unknown", "no forecast of this machine with speculation was ever checked")
    if check.num_requests < FEWEST_REQUESTS:
        return Advice("unknown", f"the forecast was checked with {check.num_requests} requests of {FEWEST_REQUESTS}")
    if not_measured:
        return Advice("unknown", not_measured)
    effect = " to ".join(dict.fromkeys(f"{gain:.2f}" for gain in (min(gains), max(gains)))) + "x"
    middle, percent = median(gains), f"{100 * error:.0f} %"
    if 1.0 / (1.0 + error) <= middle <= 1.0 + error:
        return Advice("unknown", f"the error of the forecast ({percent}) is larger than the effect ({effect})")
    return Advice("on" if middle > 1.0 else "off", f"{effect}, by a forecast with an error of {percent}")


def error_of(machine: Machine, figures: Sequence[str]) -> float | None:
    """Return the largest error of these figures in the last checks; None: none of them was ever checked."""
    errors = (abs(check.errors[name]) for check in machine.checks.values() for name in figures if name in check.errors)
    return max([_LEAST_ERROR, *known]) if (known := [*errors]) else None
