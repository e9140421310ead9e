"""The bound on the series of a family."""

from prolepsis.core.telemetry.declare import MetricFamily, MetricsRegistry


def most_series(registry: MetricsRegistry, family: MetricFamily) -> int:
    sets = family.sets(registry.values)
    return family.size * (sets.most if sets is not None else 1)
