"""Counters and gauges of the features, declared in one way: names begin with `prolepsis_`, labels are listed."""

from prometheus_client import CollectorRegistry, Counter, Gauge


def counter(registry: CollectorRegistry, name: str, text: str, *labels: str) -> Counter:
    """Return a new counter."""
    return Counter(f"prolepsis_{name}", text, labels, registry=registry)


def gauge(registry: CollectorRegistry, name: str, text: str, *labels: str) -> Gauge:
    """Return a new gauge."""
    return Gauge(f"prolepsis_{name}", text, labels, registry=registry)
