"""A histogram that takes many values at once: for what is counted token by token and added when a request has ended."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate
from threading import Lock

from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from prolepsis.telemetry.declare import PREFIX, Family, declared, series_of


class Distribution(Collector):
    """A histogram with weights; the library's takes one value a call, for some microseconds each."""

    def __init__(
        self,
        registry: CollectorRegistry,
        name: str,
        text: str,
        *labels: str,
        buckets: Sequence[float],
        most: int | None = None,
    ) -> None:
        self._name, self._text = PREFIX + name, text
        self._labels = labels
        self._buckets = tuple(buckets)
        self._sets = declared(registry, Family(PREFIX + name, "histogram", text, labels, most, size=series_of(buckets)))
        self._lock = Lock()
        self._counts: dict[tuple[str, ...], list[int]] = {}
        self._sums: dict[tuple[str, ...], float] = {}
        registry.register(self)

    def add(self, values: Iterable[tuple[float, int]], *labels: str) -> None:
        """Count each value as often as it says."""
        counts, total = [0] * (len(self._buckets) + 1), 0.0
        for value, number in values:
            counts[bisect_left(self._buckets, value)] += number
            total += value * number
        self.add_counts(counts, total, *labels)

    def add_counts(self, counts: Sequence[int], total: float, *labels: str) -> None:
        """Add the number of values in each bucket, the last without a bound, and the sum of all values."""
        key = self._sets.bounded(labels) if self._sets is not None else ()
        with self._lock:
            known = self._counts.setdefault(key, [0] * len(counts))
            for place, number in enumerate(counts):
                known[place] += number
            self._sums[key] = self._sums.get(key, 0.0) + total

    def collect(self) -> Iterable[Metric]:
        """Yield the family, for the registry."""
        family = HistogramMetricFamily(self._name, self._text, labels=self._labels)
        bounds = [*map(floatToGoString, self._buckets), "+Inf"]
        with self._lock:
            for key, counts in self._counts.items():
                family.add_metric(key, list(zip(bounds, accumulate(counts), strict=True)), self._sums[key])
        yield family

    def describe(self) -> Iterable[Metric]:
        """Yield the family without values, for the registry's check of names."""
        yield HistogramMetricFamily(self._name, self._text, labels=self._labels)
