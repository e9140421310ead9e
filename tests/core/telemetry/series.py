"""Reads series of a registry, and bounds them."""

from prolepsis.core.telemetry.declare import MetricsRegistry
from prolepsis.core.telemetry.labels import MetricFamily
from prolepsis.core.telemetry.metrics import Metrics


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    """Return the value of a series, `name` without `prolepsis_`; None: there is none."""
    return metrics.registry.get_sample_value(f"prolepsis_{name}", labels)


def most_series(registry: MetricsRegistry, family: MetricFamily) -> int:
    sets = family.sets(registry.values)
    return family.size * (sets.most if sets is not None else 1)
