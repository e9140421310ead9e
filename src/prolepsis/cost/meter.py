"""What one finished request cost, and what it is compared by."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from prolepsis.core.stats import DeviceSeconds
from prolepsis.cost.prices import HOURS_PER_MONTH, Price
from prolepsis.statistics.arms import Arm

Dimension = Literal["route", "tenant", "proposer"]
DIMENSIONS: tuple[Dimension, ...] = ("route", "tenant", "proposer")
NO_PROPOSER = "none"
"""Of requests without a verified draft."""


@dataclass(frozen=True, slots=True)
class Contest:
    """A stage of a rollout, in which requests go to the canary with one probability, by chance."""

    rollout_id: str
    run: int
    stage: int
    share: float
    """That probability, between 0 and 1."""


@dataclass(frozen=True, slots=True)
class RequestCost:
    """A request that an engine decoded."""

    route: str
    tenant: str
    proposer: str
    """That most of its accepted tokens came from; known only afterwards, so nothing is randomised by it."""
    num_output_tokens: int
    device: DeviceSeconds
    contest: Contest | None = None
    """None: it is no part of a comparison."""
    arm: Arm = "control"

    def value(self, dimension: Dimension) -> str:
        return {"route": self.route, "tenant": self.tenant, "proposer": self.proposer}[dimension]


MOST_VALUES = 32
"""Values of a dimension that have sums of their own; what comes after them is `OTHER`."""
OTHER = "other"


@dataclass(slots=True)
class Spent:
    """Sums over requests."""

    num_requests: int = 0
    num_output_tokens: int = 0
    device: DeviceSeconds = field(default_factory=DeviceSeconds)

    def add(self, cost: RequestCost) -> None:
        self.num_requests += 1
        self.num_output_tokens += cost.num_output_tokens
        self.device.add(cost.device)

    @property
    def seconds_per_token(self) -> float | None:
        """Device seconds per output token: all of them over all of these."""
        return self.device.total / self.num_output_tokens if self.num_output_tokens else None

    @property
    def saved_s(self) -> float:
        """Device seconds that plain decoding had taken more, by the model's prediction; negative where it had not."""
        return self.device.predicted_plain - self.device.total


class Spending:
    """Since the server started."""

    def __init__(self) -> None:
        self.total = Spent()
        self.by: dict[Dimension, dict[str, Spent]] = {dimension: {} for dimension in DIMENSIONS}

    def observe(self, cost: RequestCost) -> None:
        self.total.add(cost)
        for dimension in DIMENSIONS:
            known, value = self.by[dimension], self.known(dimension, cost.value(dimension))
            known.setdefault(value, Spent()).add(cost)

    def known(self, dimension: Dimension, value: str) -> str:
        """Return the value it is summed under: its own, or `OTHER` where there are too many."""
        values = self.by[dimension]
        return value if value in values or len(values) < MOST_VALUES else OTHER


WINDOW_S = 86400.0
"""The time that a forecast looks back on, at most: a day, as a day has its hours."""
_EVERY_S = 300.0
LEAST_S = 60.0
"""Served, before anything is forecast."""


@dataclass(frozen=True, slots=True)
class Moment:
    """Sums at one time; `at` in seconds of a clock that only goes forward."""

    at: float
    device_s: float
    saved_s: float
    num_output_tokens: int


@dataclass(frozen=True, slots=True)
class Forecast:
    """Of a month of `HOURS_PER_MONTH`, of one device. Amounts are in the book's currency, None without prices."""

    looks_back_s: float
    busy: float
    """Share of the time that was charged to requests."""
    device_hours: float
    num_output_tokens: float
    saved_device_hours: float
    """By the model's prediction of plain decoding; negative where speculation costs more."""
    amount_of_use: float | None
    """Of the device hours that requests take."""
    amount_of_device: float | None
    """Of the device, held all month."""
    saved_amount: float | None
    """Of the device hours saved. A device that is held all month costs the same: it has room for more requests."""
    assumes: str


class Pace:
    """Remembers sums now and then, a day back."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._past: deque[Moment] = deque([Moment(clock(), 0.0, 0.0, 0)])

    def look(self, spent: Spent) -> None:
        """Remember the sums if it is time; to be called every few seconds."""
        now = self._moment(spent)
        if now.at - self._past[-1].at >= _EVERY_S:
            self._past.append(now)
        while len(self._past) > 1 and now.at - self._past[1].at >= WINDOW_S:
            self._past.popleft()

    def forecast(self, spent: Spent, price: Price | None) -> Forecast | None:
        """Return the forecast, None in the first minute."""
        first, last = self._past[0], self._moment(spent)
        return None if last.at - first.at < LEAST_S else forecast(first, last, price)

    def _moment(self, spent: Spent) -> Moment:
        return Moment(self._clock(), spent.device.total, spent.saved_s, spent.num_output_tokens)


def forecast(first: Moment, last: Moment, price: Price | None) -> Forecast:
    """Carry on what happened between two moments for a month, in a straight line."""
    elapsed = last.at - first.at
    months = HOURS_PER_MONTH * 3600.0 / elapsed
    used, saved = months * (last.device_s - first.device_s) / 3600.0, months * (last.saved_s - first.saved_s) / 3600.0
    per_hour = price.per_hour if price else None
    return Forecast(
        looks_back_s=elapsed,
        busy=(last.device_s - first.device_s) / elapsed,
        device_hours=used,
        num_output_tokens=months * (last.num_output_tokens - first.num_output_tokens),
        saved_device_hours=saved,
        amount_of_use=None if per_hour is None else used * per_hour,
        amount_of_device=None if per_hour is None else HOURS_PER_MONTH * per_hour,
        saved_amount=None if per_hour is None else saved * per_hour,
        assumes=_assumes(elapsed, price),
    )


def _assumes(elapsed: float, price: Price | None) -> str:
    past = f"the last {elapsed / 3600.0:.1f} h" if elapsed >= 3600.0 else f"the last {elapsed / 60.0:.0f} min"
    prices = f"prices stay those of {price.name}" if price else "no prices are known"
    return (
        f"requests go on all month as in {past}, with no growth and no seasons; one device, {HOURS_PER_MONTH:g} hours; "
        f"savings are the model's prediction; {prices}"
    )
