"""The cost of requests: sums by route, tenant, rule, proposer, key and tag, and a forecast from their rate."""

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import stdev
from typing import Annotated, Literal

from pydantic import Field

from prolepsis.control.cost.prices import HOURS_PER_MONTH, Price
from prolepsis.control.statistics.arms import Arm
from prolepsis.core.facts import NO_RULE
from prolepsis.core.json_value import computed
from prolepsis.core.stats import DeviceSeconds
from prolepsis.core.traffic_sums import Interval, TrafficSums, ratio, sums_of_device

Compared = Literal["route", "tenant", "rule", "proposer"]
COMPARED: tuple[Compared, ...] = ("route", "tenant", "rule", "proposer")
Dimension = Literal[Compared, "key", "tag"]
DIMENSIONS: tuple[Dimension, ...] = (*COMPARED, "key", "tag")
NO_PROPOSER = "none"  # the proposer of requests without a verified draft


@dataclass(frozen=True, slots=True, order=True)
class Experiment:
    """A stage of a rollout in which chance assigns requests to the canary with one probability; later ones are more."""

    rollout_id: str
    run: int
    stage: int
    share: float  # that probability, between 0 and 1


@dataclass(frozen=True, slots=True)
class RequestCost:
    """One request that an engine decoded."""

    route: str
    tenant: str
    proposer: str  # the source of most accepted tokens; known only afterwards, so no randomisation can use it
    num_output_tokens: int
    device: DeviceSeconds
    num_computed_tokens: int = 0  # tokens of the prompt that were computed, so not those from the prefix cache
    rule: str = NO_RULE  # of the policy
    amount: float | None = None  # at the prices of the time that it took; None: without prices
    experiment: Experiment | None = None  # None: it is not part of a comparison
    arm: Arm = "control"
    key: str = ""  # public part of the API key
    tags: tuple[str, ...] = ()  # those that have sums
    revenue: float | None = None  # what its client is charged; None: its tags have no price

    def value(self, dimension: Compared) -> str:
        return str(getattr(self, dimension))

    def values(self, dimension: Dimension) -> tuple[str, ...]:
        """Return the values under which it is summed: of tags it may have several."""
        return self.tags if dimension == "tag" else (self.key if dimension == "key" else self.value(dimension),)


MAX_VALUES = 32  # values of a dimension with sums of their own; later ones are counted as `OTHER`
OTHER = "other"


@dataclass(slots=True)
class UsageTotals:
    """Sums over requests since the server started; amounts, each at the price of its time, are null without prices."""

    num_requests: int = 0
    num_output_tokens: int = 0
    device: Annotated[DeviceSeconds, Field(exclude=True)] = field(default_factory=DeviceSeconds)
    amount: float | None = None
    predicted: Annotated[TrafficSums, Field(exclude=True)] = field(default_factory=TrafficSums)
    """Of requests with a prediction."""
    revenue: float | None = None
    """What clients are charged for requests whose tags have a price; null: there are none."""
    value: str = ""  # of the dimension

    def add(self, cost: RequestCost) -> None:
        self.num_requests += 1
        self.num_output_tokens += cost.num_output_tokens
        self.device.add(cost.device)
        if cost.device.predicted_plain:
            self.predicted.add(sums_of_device(cost.device))
        if cost.amount is not None:
            self.amount = (self.amount or 0.0) + cost.amount
        if cost.revenue is not None:
            self.revenue = (self.revenue or 0.0) + cost.revenue

    @computed
    def device_s(self) -> dict[Literal["prefill", "plain", "verify", "propose", "host"], float]:
        return self.device.by_kind()

    @computed
    def total_device_s(self) -> float:
        return self.device.total

    @computed
    def device_s_per_token(self) -> float | None:
        """All device seconds over all output tokens."""
        return ratio(self.device.total, self.num_output_tokens)

    @computed
    def predicted_plain_s(self) -> float:
        return self.device.predicted_plain

    @computed
    def saved_s(self) -> float:
        """Predicted device seconds of plain decoding less the measured ones; negative if speculation costs more."""
        return self.predicted.predicted_plain_s - self.predicted.device_s

    @computed
    def saved(self) -> float | None:
        """1 - total / predicted, over requests with a prediction."""
        return self.predicted.saved

    @computed
    def saved_bounds(self) -> tuple[float, float] | None:
        """Of 95 %, at one look; null with fewer than 20 requests."""
        return self.predicted.saved_bounds


class Usage:
    """Totals since the server started."""

    def __init__(self) -> None:
        self.total = UsageTotals()
        self.by: dict[Dimension, dict[str, UsageTotals]] = {dimension: {} for dimension in DIMENSIONS}

    def observe(self, cost: RequestCost) -> None:
        self.total.add(cost)
        for dimension in DIMENSIONS:
            for value in {self.known(dimension, value) for value in cost.values(dimension)}:
                self.by[dimension].setdefault(value, UsageTotals(value=value)).add(cost)

    def of(self, dimension: Dimension) -> list[UsageTotals]:
        """Return the totals of a dimension, the most expensive first."""
        return sorted(self.by[dimension].values(), key=lambda totals: -totals.device.total)

    def known(self, dimension: Dimension, value: str) -> str:
        """Return the value under which it is summed: its own, or `OTHER` if there are too many."""
        values = self.by[dimension]
        return value if value in values or len(values) < MAX_VALUES else OTHER


WINDOW_S = 86400.0  # the longest time that a forecast looks back: a day, because load depends on the hour
_EVERY_S = 300.0
LEAST_SPANS = 12
"""Spans of `_EVERY_S` before the first forecast, an hour in all; its bounds come from as many parts of the past."""
_T = 2.201  # Student's t with 11 degrees of freedom at 97.5 %: of the mean of 12 parts


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Totals at one time; `at` in seconds of a monotonic clock."""

    at: float
    device_s: float
    saved_s: float
    num_output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CostForecast:
    """For a month of `HOURS_PER_MONTH` on one device. Amounts are in the price book's currency, null without prices.

    Bounds are what the past says, from how much twelve parts of it differ.
    """

    looks_back_s: float
    busy: float  # share of the time that is charged to requests
    device_hours: Interval
    num_output_tokens: Interval
    saved_device_hours: Interval  # by the predicted cost of plain decoding; negative if speculation costs more
    amount_of_use: Interval | None  # for the device hours of requests
    amount_of_device: float | None  # for the device, reserved all month
    saved_amount: Interval | None
    """For the saved device hours, where a device is paid by the time that it is used; else null: one that is reserved
    costs the same, and has room for more requests."""
    assumes: str


class RateWindow:
    """Snapshots of the totals over the last day."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._past: deque[Snapshot] = deque([Snapshot(clock(), 0.0, 0.0, 0)])

    def poll(self, totals: UsageTotals) -> None:
        """Take a snapshot if it is due; to be called every few seconds."""
        now = self._moment(totals)
        if now.at - self._past[-1].at >= _EVERY_S:
            self._past.append(now)
        while len(self._past) > 1 and now.at - self._past[1].at >= WINDOW_S:
            self._past.popleft()

    def forecast(self, totals: UsageTotals, price: Price | None) -> CostForecast | None:
        """Return the forecast, None in the first hour."""
        if len(self._past) <= LEAST_SPANS:
            return None
        return forecast([*list(self._past)[:-1], self._moment(totals)], price)

    def _moment(self, totals: UsageTotals) -> Snapshot:
        return Snapshot(self._clock(), totals.device.total, totals.saved_s, totals.num_output_tokens)


def forecast(past: Sequence[Snapshot], price: Price | None) -> CostForecast:
    """Extrapolate the rates of the past to a month; it has `LEAST_SPANS` spans or more."""
    first, last = past[0], past[-1]
    elapsed, per_hour = last.at - first.at, price.per_hour if price else 0.0
    used = _month(past, lambda snapshot: snapshot.device_s / 3600.0, least=0.0)
    saved = _month(past, lambda snapshot: snapshot.saved_s / 3600.0)
    return CostForecast(
        looks_back_s=elapsed,
        busy=(last.device_s - first.device_s) / elapsed,
        device_hours=used,
        num_output_tokens=_month(past, lambda snapshot: snapshot.num_output_tokens, least=0.0),
        saved_device_hours=saved,
        amount_of_use=used.mapped(lambda hours: hours * per_hour) if price else None,
        amount_of_device=HOURS_PER_MONTH * per_hour if price else None,
        saved_amount=saved.mapped(lambda hours: hours * per_hour) if price and price.is_billed_by_time else None,
        assumes=_assumes(elapsed, price),
    )


def _month(past: Sequence[Snapshot], total: Callable[[Snapshot], float], least: float = -math.inf) -> Interval:
    """Return what a month has of a growing total, with bounds: the means of parts of the past vary by chance."""
    seconds, num_spans = HOURS_PER_MONTH * 3600.0, len(past) - 1
    edges = [past[round(i * num_spans / LEAST_SPANS)] for i in range(LEAST_SPANS + 1)]
    rates = [(total(b) - total(a)) / (b.at - a.at) for a, b in pairwise(edges)]
    rate = (total(past[-1]) - total(past[0])) / (past[-1].at - past[0].at)
    error = _T * stdev(rates) / math.sqrt(LEAST_SPANS)
    return Interval(seconds * rate, max(least, seconds * (rate - error)), seconds * (rate + error))


def _assumes(elapsed: float, price: Price | None) -> str:
    past = f"the last {elapsed / 3600.0:.1f} h"
    prices = f"prices stay those of {price.name}" if price else "no prices are known"
    return (
        f"requests stay all month as in {past}, without growth or seasons, and bounds know no others; "
        f"one device, {HOURS_PER_MONTH:g} hours; savings are the model's prediction; {prices}"
    )
