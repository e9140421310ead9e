"""Sums over requests that ended, and their ratios: counts add, so a ratio is taken last."""

from dataclasses import dataclass, fields
from math import sqrt

from prolepsis.core.stats import DeviceSeconds, RequestStats


def ratio(part: float, whole: float) -> float | None:
    """Return `part` / `whole`, None where there is nothing to be a part of."""
    return part / whole if whole else None


LEAST_REQUESTS = 20
"""With fewer requests a saving is not shown: it would be luck."""
_Z = 1.96  # standard errors of a 95 % interval


@dataclass(slots=True)
class Drafted:
    """Draft tokens, and how many of them were accepted."""

    num_draft_tokens: int = 0
    num_accepted: int = 0

    @property
    def acceptance_rate(self) -> float | None:
        return ratio(self.num_accepted, self.num_draft_tokens)


@dataclass(slots=True)
class TrafficSums(Drafted):
    """Requests that ended, and what they took of the device."""

    num_requests: int = 0
    num_output_tokens: int = 0
    device_s: float = 0.0
    predicted_plain_s: float = 0.0
    device_squares: float = 0.0
    """Squares and products by request, for the interval of what is saved."""
    predicted_squares: float = 0.0
    products: float = 0.0

    @property
    def saved(self) -> float | None:
        """1 - device time / predicted device time of plain decoding."""
        spent = ratio(self.device_s, self.predicted_plain_s)
        return None if spent is None else 1.0 - spent

    @property
    def saved_bounds(self) -> tuple[float, float] | None:
        """The 95 % interval of `saved`, at one look; None with fewer than `LEAST_REQUESTS`.

        That of a linearised ratio (Cochran, Sampling Techniques, 1977, section 6.3): the request is the observation.
        """
        spent = ratio(self.device_s, self.predicted_plain_s)
        if spent is None or self.num_requests < LEAST_REQUESTS:
            return None
        squares = max(0.0, self.device_squares - 2.0 * spent * self.products + spent * spent * self.predicted_squares)
        spread = _Z * sqrt(squares * self.num_requests / (self.num_requests - 1)) / self.predicted_plain_s
        return 1.0 - spent - spread, 1.0 - spent + spread

    def add(self, other: "TrafficSums") -> None:
        for name in _NAMES:
            setattr(self, name, getattr(self, name) + getattr(other, name))


_NAMES = tuple(field.name for field in fields(TrafficSums))


def sums_of(stats: RequestStats) -> TrafficSums:
    """Return the sums of one request."""
    sums = sums_of_device(stats.device)
    sums.num_output_tokens = stats.num_output_tokens
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
