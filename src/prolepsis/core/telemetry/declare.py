"""Declares every series: names begin with `prolepsis_`, labels are bounded, and a registry knows what it may hold."""

from collections.abc import Iterable, Sequence
from math import inf
from typing import Self

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.registry import Collector

from prolepsis.core.telemetry.labels import OTHER, LabelSets, LabelValues, MetricFamily

disable_created_metrics()  # type: ignore[no-untyped-call]  # a series of creation times for each counter is noise

PREFIX = "prolepsis_"

LATENCY_BUCKETS = (0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Seconds until something of a request has happened; the limits of latency objectives are among them."""
TOKEN_BUCKETS = (0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.25)  # seconds of one token


class MetricsRegistry(CollectorRegistry):
    """A registry whose series are bounded; a plain one, as in a test of one feature, bounds each family alone."""

    def __init__(self, tenants: Sequence[str] = ()) -> None:
        super().__init__()
        self.values = LabelValues(tenants)
        self.families: dict[str, MetricFamily] = {}


class _Bounded(MetricWrapperBase):
    """A family whose label sets are bounded. The child of a set that was seen before costs one look in a dictionary."""

    sets: LabelSets | None = None
    children: dict[tuple[object, ...], Self]  # by label values that are counted as they are

    def bounded(self, sets: LabelSets | None) -> Self:
        """Bound the label sets, None: there are no labels; return this family."""
        self.sets, self.children = sets, {}
        return self

    def labels(self, *labelvalues: object, **labelkwargs: object) -> Self:
        assert not labelkwargs, "label values are given in order"
        if self.sets is None:  # without labels: the library says what is wrong
            return super().labels(*labelvalues)
        child = self.children.get(labelvalues)
        if child is None:
            values = self.sets.bounded(tuple(map(str, labelvalues)))
            child = self.child(values)
            if values == labelvalues:
                self.children[values] = child
        return child

    def child(self, values: tuple[str, ...]) -> Self:
        """Return what counts for a label set within the bounds."""
        return super().labels(*values)


class BoundedCounter(_Bounded, Counter):
    """A counter of a bounded number of label sets."""

    def inc(self, amount: float = 1, exemplar: dict[str, str] | None = None) -> None:
        """Add an amount; raises `ValueError` for one below 0, and for one that no later sum would recover from."""
        super().inc(checked(amount), exemplar)


class BoundedHistogram(_Bounded, Histogram):
    """A histogram of a bounded number of label sets."""

    def observe(self, amount: float, exemplar: dict[str, str] | None = None) -> None:
        """Count a value; raises `ValueError` for one that is below 0 or not finite."""
        super().observe(checked(amount), exemplar)


def checked(amount: float) -> float:
    """Return an amount that sums may take; raises `ValueError` for one below 0, NaN and infinity."""
    if not 0.0 <= amount < inf:
        raise ValueError(f"{amount} was counted; allowed: 0 and more, finite")
    return amount


class BoundedGauge(_Bounded, Gauge):
    """Under `other` a gauge would show the value that was set last, for any of its labels: it is not shown."""

    def child(self, values: tuple[str, ...]) -> Self:
        return type(self)("not_shown", "", registry=None) if OTHER in values else super().child(values)

    def clear(self) -> None:
        super().clear()
        if self.sets is not None:
            self.sets.forget()
            self.children.clear()


def counter(registry: CollectorRegistry, name: str, text: str, *labels: str, most: int | None = None) -> BoundedCounter:
    """Return a new counter of at most `most` label sets; `name` is without `_total`."""
    sets = declared(registry, MetricFamily(f"{PREFIX}{name}_total", "counter", text, labels, most))
    return BoundedCounter(PREFIX + name, text, labels, registry=registry).bounded(sets)


def gauge(registry: CollectorRegistry, name: str, text: str, *labels: str, most: int | None = None) -> BoundedGauge:
    """Return a new gauge of at most `most` label sets."""
    sets = declared(registry, MetricFamily(PREFIX + name, "gauge", text, labels, most))
    return BoundedGauge(PREFIX + name, text, labels, registry=registry).bounded(sets)


def histogram(
    registry: CollectorRegistry,
    name: str,
    text: str,
    *labels: str,
    buckets: Sequence[float] = LATENCY_BUCKETS,
    most: int | None = None,
    usual: str = "",
) -> BoundedHistogram:
    """Return a new histogram of at most `most` label sets; `name` ends with its unit."""
    sets = declared(registry, MetricFamily(PREFIX + name, "histogram", text, labels, most, usual, series_of(buckets)))
    return BoundedHistogram(PREFIX + name, text, labels, buckets=buckets, registry=registry).bounded(sets)


def info(registry: CollectorRegistry, name: str, text: str, labels: tuple[str, ...]) -> Info:
    """Return a new info metric: one series, with facts as labels, which need no bound; `name` is without `_info`."""
    if isinstance(registry, MetricsRegistry):
        registry.families[f"{PREFIX}{name}_info"] = MetricFamily(f"{PREFIX}{name}_info", "info", text, labels, most=1)
    return Info(PREFIX + name, text, registry=registry)


class LabelUse(Collector):
    """Counts of label values, and of values that were counted as `other`."""

    _VALUES = PREFIX + "metric_label_values", "Values of a label that have series of their own"
    _OTHER = PREFIX + "metric_label_other", "Values of a label that were counted as other"

    def __init__(self, registry: MetricsRegistry) -> None:
        self._values = registry.values
        declared(registry, MetricFamily(self._VALUES[0], "gauge", self._VALUES[1], ("label",)))
        declared(registry, MetricFamily(f"{self._OTHER[0]}_total", "counter", self._OTHER[1], ("label",)))
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        used, other = self.describe()
        for label, number in sorted(self._values.counts().items()):
            used.add_metric([label], number)
            other.add_metric([label], self._values.num_other[label])
        return used, other

    def describe(self) -> tuple[GaugeMetricFamily, CounterMetricFamily]:
        return (GaugeMetricFamily(*self._VALUES, labels=["label"]), CounterMetricFamily(*self._OTHER, labels=["label"]))


def series_of(buckets: Sequence[float]) -> int:
    """Return the series of a histogram: its buckets, the one without a bound, the sum and the count."""
    return len(buckets) + 3


def declared(registry: CollectorRegistry, family: MetricFamily) -> LabelSets | None:
    """Note a family; return the bound on its label sets, None where it has no labels."""
    if not isinstance(registry, MetricsRegistry):
        return family.sets(LabelValues())
    registry.families[family.name] = family
    return family.sets(registry.values)
