"""Asks Prometheus which alerts fired in a period, and for values of queries, at a time or over a period."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx2
from pydantic import BaseModel, ValidationError

from prolepsis.core.errors import ConfigError
from prolepsis.core.network import address
from prolepsis.ops.incident.period import Period

_TIMEOUT_S = 30.0
_LEAST_STEP_S = 15.0
_MOST_STEPS = 10_000  # Prometheus returns 11,000 points of a series at most
_MOST_POINTS = 240  # of a line: more than a screen shows


class _Series(BaseModel):
    metric: dict[str, str]
    value: tuple[float, float] = (0.0, 0.0)
    values: list[tuple[float, float]] = []


class _Data(BaseModel):
    result: list[_Series]


class _Reply(BaseModel):
    data: _Data


@dataclass(frozen=True, slots=True)
class Firing:
    """A stretch of time in which an alert fired."""

    labels: Mapping[str, str]
    since: float  # Unix time; the start of the period if the alert fired before
    until: float | None  # None: it still fires at the end of the period
    from_before: bool = False  # whether it fired when the period began

    @property
    def name(self) -> str:
        return self.labels.get("alertname", "")


@dataclass(frozen=True, slots=True)
class SeriesValues:
    """The values of a query's series over a period."""

    labels: Mapping[str, str]
    values: Sequence[float | None]
    """The value at each time; None if there is none, or if it is not a finite number."""


@dataclass(frozen=True, slots=True)
class Times:
    """Moments at equal distances: Unix time in seconds."""

    start: float
    step_s: float
    number: int

    def place(self, at: float) -> int:
        """Return the number of the moment that is `at`."""
        return round((at - self.start) / self.step_s)


def times_of(period: Period) -> Times:
    """Return the moments at which lines of a period have their points: every 15 s in an hour, at most 240 in all."""
    step_s = max(_LEAST_STEP_S, period.seconds / _MOST_POINTS)
    return Times(period.start.timestamp(), step_s, math.floor(period.seconds / step_s) + 1)


class Prometheus:
    """Raises `ConfigError` for a server that does not answer, and for queries that it refuses."""

    def __init__(
        self, url: str, transport: httpx2.BaseTransport | None = None, now: Callable[[], float] = time.time
    ) -> None:
        """`now` is Unix time: nothing is known of what comes after it."""
        self._url = url.rstrip("/")
        self._transport = transport
        self._now = now

    def firing(self, period: Period) -> list[Firing]:
        """Return when alerts fired, to the accuracy of a step: 15 s in a period of less than a day or two."""
        step = max(_LEAST_STEP_S, period.seconds / _MOST_STEPS)
        start, end = period.start.timestamp(), min(period.end.timestamp(), self._now())
        if end <= start:
            return []
        query: dict[str, str | float] = {
            "query": 'ALERTS{alertstate="firing"}',
            "start": start,
            "end": end,
            "step": step,
        }
        matrix = self._ask("query_range", query)
        return sorted(
            (span for series in matrix for span in _stretches(series, start, end, step)), key=lambda span: span.since
        )

    def values(self, query: str, at: float) -> list[tuple[Mapping[str, str], float]]:
        """Return the value of each series at a time, with its labels."""
        return [
            (series.metric, series.value[1])
            for series in self._ask("query", {"query": query, "time": min(at, self._now())})
        ]

    def lines(self, query: str, times: Times) -> list[SeriesValues]:
        end = min(times.start + (times.number - 1) * times.step_s, self._now())
        if end < times.start:
            return []
        parameters: dict[str, str | float] = {"query": query, "start": times.start, "end": end, "step": times.step_s}
        return [_line(series, times) for series in self._ask("query_range", parameters)]

    def _ask(self, path: str, query: Mapping[str, str | float]) -> list[_Series]:
        if address(self._url) is None:
            message = f"--prometheus is {self._url!r}; allowed: its URL, such as http://127.0.0.1:9090"
            raise ConfigError(message, param="prometheus")
        try:
            with httpx2.Client(transport=self._transport, timeout=_TIMEOUT_S) as client:
                reply = client.get(f"{self._url}/api/v1/{path}", params=query)
            document: Any = reply.json()
        except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
            raise ConfigError(f"no Prometheus answers at {self._url}: {error}", param="prometheus") from None
        try:
            return _Reply.model_validate(document).data.result
        except ValidationError:
            said = document.get("error") if isinstance(document, dict) else None
            message = f"{self._url} did not reply as Prometheus does: {reply.status_code} {said or ''}".rstrip()
            raise ConfigError(message, param="prometheus") from None


def _line(series: _Series, times: Times) -> SeriesValues:
    values: list[float | None] = [None] * times.number
    for at, value in series.values:
        if math.isfinite(value):
            values[times.place(at)] = value
    return SeriesValues(series.metric, values)


def _stretches(series: _Series, start: float, end: float, step: float) -> Iterator[Firing]:
    """Yield stretches without a gap of more than two steps."""
    labels = {name: value for name, value in series.metric.items() if name not in ("__name__", "alertstate")}
    times = [at for at, _ in series.values]
    starts = [i for i, at in enumerate(times) if i == 0 or at - times[i - 1] > 2 * step]
    for first, after in zip(starts, [*starts[1:], len(times)], strict=True):
        last = times[after - 1]
        yield Firing(labels, times[first], None if end - last < 2 * step else last + step, times[first] < start + step)
