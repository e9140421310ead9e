"""Histograms that take many values at once."""

from prometheus_client import CollectorRegistry, Histogram

from prolepsis.core.telemetry.distribution import Distribution


def test_values_with_weights_give_what_the_library_gives_one_by_one() -> None:
    buckets, registry = (1.0, 2.5, 4.0), CollectorRegistry()
    many = Distribution(registry, "many", "", "mode", buckets=buckets)
    single = Histogram("prolepsis_single", "", ["mode"], buckets=buckets, registry=registry)
    for value, number in ((0.5, 2), (1.0, 1), (2.5, 3), (9.0, 4)):
        many.labels("on").add(value, number)
        for _ in range(number):
            single.labels("on").observe(value)
    by_family = [
        [(one.name.removeprefix(family.name), one.labels, one.value) for one in family.samples]
        for family in registry.collect()
    ]
    assert by_family[0] == by_family[1]
