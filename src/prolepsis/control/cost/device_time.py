"""The time of the device and its price: held since the server's start, used by requests, idle in between.

Every second has the price that was in force then. A period ends after an hour, when the price changes, and at the
server's stop. Requests count in the period in which they end, at the prices of the time that they took.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from prolepsis.control.cost.prices import PriceInUse
from prolepsis.core.json_value import computed

PERIOD_S = 3600.0
MAX_PERIODS = 168  # periods that are shown and wait for the store: a week of hours
_MAX_PRICES = 1000


class PricesOverTime:
    """Prices of a second with the times from which they were in force; before the first one it holds too."""

    def __init__(self) -> None:
        self._times: list[float] = []
        self._prices: list[float] = []

    def use(self, at: float, per_second: float) -> None:
        """Use a price from a time on, later than all before; the oldest of very many are forgotten."""
        self._times.append(at)
        self._prices.append(per_second)
        del self._times[:-_MAX_PRICES], self._prices[:-_MAX_PRICES]

    def amount(self, start: float, end: float) -> float:
        """Return the price of all seconds between two times."""
        bounds = [start, *(at for at in self._times if start < at < end), end]
        return sum((b - a) * self.at(a) for a, b in pairwise(bounds))

    def mean(self, start: float, end: float) -> float:
        """Return the mean price of a second between two times."""
        return self.amount(start, end) / (end - start) if end > start else self.at(end)

    def at(self, time: float) -> float:
        return self._prices[max(0, bisect_right(self._times, time) - 1)]


@dataclass(frozen=True, slots=True)
class DeviceCost:
    """The device in one period. Amounts are null without a price book."""

    started_at: float  # Unix time in seconds, as `ended_at`
    ended_at: float
    price: str | None  # version of the book and name of the price; of several: the last one
    currency: str | None
    held_s: float  # while the server ran
    used_s: float  # charged to requests that ended
    num_output_tokens: int
    amount_paid: float | None  # for the time that the device was held
    amount_used: float | None  # for the time that requests used

    @computed
    def paid_per_million_tokens(self) -> float | None:
        return self._per_million(self.amount_paid)

    @computed
    def used_per_million_tokens(self) -> float | None:
        return self._per_million(self.amount_used)

    def _per_million(self, amount: float | None) -> float | None:
        return None if amount is None or not self.num_output_tokens else 1e6 * amount / self.num_output_tokens


class DeviceTime:
    """Sums since the start, and the periods."""

    def __init__(self, clock: Callable[[], float], now: Callable[[], float]) -> None:
        """`clock`: monotonic; `now`: Unix time."""
        self._clock = clock
        self._now = now
        self._prices = PricesOverTime()
        self._began = clock()
        self._past = DeviceCost(now(), now(), None, None, 0.0, 0.0, 0, None, None)
        self._period = self._past
        self._closed: deque[DeviceCost] = deque(maxlen=MAX_PERIODS)

    @property
    def closed(self) -> tuple[DeviceCost, ...]:
        """The periods that are over, the oldest first."""
        return tuple(self._closed)

    def price(self, price: PriceInUse) -> None:
        """Use a price from now on; the period ends if it had another one."""
        if self._period.price is not None:
            self.close()
        self._prices.use(self._clock(), price.per_second)
        self._period = replace(
            self._period, price=price.label, currency=price.currency, amount_paid=0.0, amount_used=0.0
        )

    def charge(self, device_s: float, took_s: float, num_output_tokens: int) -> float | None:
        """Count a request that ends now and took `took_s` since its first step; returns its price."""
        now, used = self._clock(), self._period.amount_used
        amount = None if used is None else device_s * self._prices.mean(now - took_s, now)
        self._period = replace(
            self._period,
            used_s=self._period.used_s + device_s,
            num_output_tokens=self._period.num_output_tokens + num_output_tokens,
            amount_used=None if used is None or amount is None else used + amount,
        )
        return amount

    def poll(self) -> None:
        """End the period if it is over."""
        if self._clock() - self._began >= PERIOD_S:
            self.close()

    def current(self) -> DeviceCost:
        """Return the period that is not over yet."""
        now, paid = self._clock(), self._period.amount_paid
        if paid is not None:
            paid = self._prices.amount(self._began, now)
        return replace(self._period, ended_at=self._now(), held_s=now - self._began, amount_paid=paid)

    def total(self) -> DeviceCost:
        """Return the sums since the start."""
        return _sum(self._past, self.current())

    def close(self) -> None:
        period = self.current()
        self._past = _sum(self._past, period)
        self._closed.append(period)
        self._began, at = self._clock(), self._now()
        amount = None if period.amount_paid is None else 0.0
        self._period = DeviceCost(at, at, period.price, period.currency, 0.0, 0.0, 0, amount, amount)


_SUMS = ("held_s", "used_s", "num_output_tokens", "amount_paid", "amount_used")


def _sum(past: DeviceCost, period: DeviceCost) -> DeviceCost:
    """Return both together, with the price of the latter; an amount counts from the first price on."""
    added = {name: _added(getattr(past, name), getattr(period, name)) for name in _SUMS}
    return replace(period, started_at=past.started_at, **added)


def _added(past: float | None, amount: float | None) -> Any:
    return None if amount is None else (past or 0) + amount
