"""Histograms for what is counted step by step and token by token, at a fraction of the library's cost a value."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from prolepsis.core.telemetry.declare import PREFIX, checked, declared, series_of
from prolepsis.core.telemetry.labels import MetricFamily


class BucketCounts:
    """The values of one label set. One thread adds."""

    __slots__ = ("_buckets", "numbers", "total")

    def __init__(self, buckets: Sequence[float]) -> None:
        self._buckets = buckets
        self.numbers = [0] * (len(buckets) + 1)
        """In each bucket; the last has no bound."""
        self.total = 0.0

    def add(self, value: float, number: int = 1) -> None:
        """Count a value, `number` times; raises `ValueError` for one that is below 0 or not finite."""
        checked(value)
        self.numbers[bisect_left(self._buckets, value)] += number
        self.total += value * number

    def add_counts(self, numbers: Sequence[int], total: float) -> None:
        """Count values that were sorted into the same buckets, with their sum, which is finite and not below 0."""
        checked(total)
        for place, number in enumerate(numbers):
            self.numbers[place] += number
        self.total += total


class Distribution(Collector):
    """A histogram without locks: one thread feeds it, any may scrape it. A value may come several times at once."""

    def __init__(
        self,
        registry: CollectorRegistry,
        name: str,
        text: str,
        *labels: str,
        buckets: Sequence[float],
        most: int | None = None,
    ) -> None:
        self._name, self._text, self._labels = PREFIX + name, text, labels
        self._buckets = tuple(buckets)
        family = MetricFamily(self._name, "histogram", text, labels, most, size=series_of(buckets))
        self._sets = declared(registry, family)
        self._counts: dict[tuple[str, ...], BucketCounts] = {}
        if not labels:
            self.labels()  # shown before the first value, as the library does
        registry.register(self)

    def labels(self, *labels: str) -> BucketCounts:
        """Return the counts of a label set, to add to."""
        key = self._sets.bounded(labels) if self._sets is not None else ()
        counts = self._counts.get(key)
        if counts is None:
            counts = self._counts[key] = BucketCounts(self._buckets)
        return counts

    def collect(self) -> Iterable[Metric]:
        family = HistogramMetricFamily(self._name, self._text, labels=self._labels)
        bounds = [*map(floatToGoString, self._buckets), "+Inf"]
        for key, counts in list(self._counts.items()):
            family.add_metric(key, list(zip(bounds, accumulate(counts.numbers), strict=True)), counts.total)
        yield family

    def describe(self) -> Iterable[Metric]:
        yield HistogramMetricFamily(self._name, self._text, labels=self._labels)
