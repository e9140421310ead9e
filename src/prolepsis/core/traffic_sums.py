"""Sums over requests that ended, and their ratios: counts add, so a ratio is taken last."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from math import sqrt
from typing import Annotated

from pydantic import Field

from prolepsis.core.json_value import computed
from prolepsis.core.stats import DeviceSeconds, RequestStats

LEAST_REQUESTS = 20  # with fewer requests a ratio has no bounds, and a saving is not shown: it would be luck
_Z = 1.96  # standard errors of a 95 % interval


def ratio(part: float, whole: float) -> float | None:
    """Return `part` / `whole`, None where there is nothing to be a part of."""
    return part / whole if whole else None


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with bounds of 95 %; null: not known."""

    estimate: float | None
    lower: float | None = None
    upper: float | None = None

    def mapped(self, growing: Callable[[float], float | None]) -> "Interval":
        """Return what a growing function makes of it."""
        known = (self.estimate, self.lower, self.upper)
        return Interval(*(None if value is None else growing(value) for value in known))


@dataclass(slots=True)
class RatioSums:
    """A ratio of sums over requests; its size does not depend on how many there were.

    Its variance is that of the linearised ratio (Cochran, Sampling Techniques, 1977, section 6.3): requests differ, and
    tokens of one request resemble each other, so the request is what counts as one observation.
    """

    number: int = 0
    x: float = 0.0
    n: float = 0.0
    xx: float = 0.0
    xn: float = 0.0
    nn: float = 0.0

    def add(self, x: float, n: float) -> None:
        """Process one request's part of numerator and denominator."""
        self.number += 1
        self.x, self.n = self.x + x, self.n + n
        self.xx, self.xn, self.nn = self.xx + x * x, self.xn + x * n, self.nn + n * n

    @property
    def interval(self) -> Interval | None:
        """None if the denominator is 0."""
        if self.n <= 0.0:
            return None
        share = self.x / self.n
        if self.number < LEAST_REQUESTS:
            return Interval(share)
        spread = _Z * self.standard_error
        return Interval(share, share - spread, share + spread)

    @property
    def standard_error(self) -> float:
        """Of the ratio; of two requests or more."""
        share = self.x / self.n
        squares = max(0.0, self.xx - 2.0 * share * self.xn + share * share * self.nn)
        return sqrt(squares * self.number / (self.number - 1)) / self.n


@dataclass(slots=True)
class Drafted:
    """Draft tokens, and how many of them were accepted."""

    num_draft_tokens: int = 0
    num_accepted: int = 0

    @computed
    def acceptance_rate(self) -> float | None:
        return ratio(self.num_accepted, self.num_draft_tokens)


_Hidden = Annotated[float, Field(exclude=True)]  # no part of replies


@dataclass(slots=True)
class TrafficSums(Drafted):
    """Requests that ended, and what they took of the device."""

    num_requests: int = 0
    num_output_tokens: int = 0
    num_steps: int = 0
    device_s: float = 0.0
    predicted_plain_s: float = 0.0
    device_squares: _Hidden = 0.0  # squares and products by request, for the interval of what is saved
    predicted_squares: _Hidden = 0.0
    products: _Hidden = 0.0

    @computed
    def tokens_a_pass(self) -> float | None:
        return ratio(self.num_output_tokens, self.num_steps)

    @computed
    def saved(self) -> float | None:
        """1 - device time / predicted device time of plain decoding."""
        spent = ratio(self.device_s, self.predicted_plain_s)
        return None if spent is None else 1.0 - spent

    @computed
    def saved_bounds(self) -> tuple[float, float] | None:
        """The 95 % interval of `saved`, at one look; null with fewer than 20 requests."""
        squares = (self.device_squares, self.products, self.predicted_squares)
        spent = RatioSums(self.num_requests, self.device_s, self.predicted_plain_s, *squares).interval
        if spent is None or spent.lower is None or spent.upper is None:
            return None
        return 1.0 - spent.upper, 1.0 - spent.lower

    def add(self, other: "TrafficSums") -> None:
        for name in _NAMES:
            setattr(self, name, getattr(self, name) + getattr(other, name))


_NAMES = tuple(field.name for field in fields(TrafficSums))


def sums_of(stats: RequestStats) -> TrafficSums:
    sums = sums_of_device(stats.device)
    sums.num_output_tokens, sums.num_steps = stats.num_output_tokens, stats.num_steps
    sums.num_draft_tokens, sums.num_accepted = stats.num_draft_tokens, stats.num_accepted
    return sums


def sums_of_device(device: DeviceSeconds) -> TrafficSums:
    """Return the device time of one request."""
    measured, predicted = device.total, device.predicted_plain
    return TrafficSums(
        num_requests=1,
        device_s=measured,
        predicted_plain_s=predicted,
        device_squares=measured * measured,
        predicted_squares=predicted * predicted,
        products=measured * predicted,
    )
