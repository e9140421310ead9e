"""Values and sets of labels stay within their bounds, and sums stay right."""

from itertools import product

import pytest
from prometheus_client import CollectorRegistry

from prolepsis.core.telemetry.declare import MetricsRegistry, counter, gauge, histogram
from prolepsis.core.telemetry.labels import LABELS, NUM_UNUSUAL, OTHER
from tests.core.telemetry.series import most_series


def values(registry: CollectorRegistry, name: str) -> dict[tuple[str, ...], float]:
    """Return the values of a family by label set."""
    return {
        tuple(sample.labels.values()): sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name == f"prolepsis_{name}"
    }


def test_values_beyond_the_bound_are_counted_as_other_in_every_family() -> None:
    registry, most = MetricsRegistry(), LABELS["rule"].most
    one, two = counter(registry, "one", "", "rule", most=1000), counter(registry, "two", "", "rule", most=1000)
    for number in range(most + 7):
        one.labels(f"rule-{number}").inc()
    two.labels("late").inc()
    two.labels("rule-3").inc()
    assert len(values(registry, "one_total")) == most + 1
    assert values(registry, "one_total")[OTHER,] == 7
    assert values(registry, "two_total") == {(OTHER,): 1.0, ("rule-3",): 1.0}
    assert registry.values.num_other["rule"] == 8


def test_label_sets_beyond_the_bound_lose_what_traffic_brings_before_what_code_lists() -> None:
    registry = MetricsRegistry()
    shown = counter(registry, "shown", "", "route", "mode", most=20)
    for number in range(40):
        for mode in ("on", "off"):
            shown.labels(f"/v1/{number}", mode).inc()
    sums = values(registry, "shown_total")
    assert len(sums) == 20 + 2
    assert sum(sums.values()) == 80
    assert sums["other", "on"] + sums["other", "off"] == 80 - 20
    assert sums["/v1/0", "on"] == 1


def test_sets_with_an_unusual_outcome_take_no_place_of_the_usual_ones() -> None:
    registry = MetricsRegistry()
    shown = histogram(registry, "shown_seconds", "", "route", "outcome", most=100, usual="finished")
    for number in range(100):
        shown.labels(f"/v1/{number}", "failed").observe(1)
    for number in range(100):
        shown.labels(f"/v1/{number}", "finished").observe(1)
    sums = values(registry, "shown_seconds_count")
    assert sum(outcome == "finished" and route != OTHER for route, outcome in sums) == 100
    assert sums["/v1/0", "failed"] == 1
    assert sums[OTHER, "failed"] == 100 - NUM_UNUSUAL


@pytest.mark.parametrize("usual", ["", "usual"])
@pytest.mark.parametrize(
    "labels", [("rule",), ("route", "tier", "arm", "mode"), ("proposer", "traffic_class", "state")]
)
def test_no_family_outgrows_its_bound(labels: tuple[str, ...], usual: str) -> None:
    registry = MetricsRegistry()
    shown = histogram(registry, "shown_seconds", "", *labels, most=60, usual=usual)
    for number in range(500):
        shown.labels(*(f"{label}-{number % (7 + place)}" for place, label in enumerate(labels))).observe(1)
    num_series = sum(len(family.samples) for family in registry.collect())
    assert num_series <= most_series(registry, registry.families["prolepsis_shown_seconds"])


def test_tenants_have_series_only_where_they_are_named() -> None:
    named = [f"tenant-{number}" for number in range(12)]
    registry = MetricsRegistry(tenants=named)
    shown = counter(registry, "shown", "", "tenant", "outcome", most=160)
    for tenant, outcome in product([*named, "basil", "cedar"], ("finished", "failed", "left")):
        shown.labels(tenant, outcome).inc()
    sums = values(registry, "shown_total")
    assert {tenant for tenant, _ in sums} == {*named, OTHER}
    assert {sums[tenant, "left"] for tenant in named} == {1.0}
    assert sums[OTHER, "left"] == 2.0


def test_a_gauge_shows_no_value_that_belongs_to_several() -> None:
    registry = MetricsRegistry()
    shown = gauge(registry, "shown", "", "version", most=4)
    for number in range(10):
        shown.labels(f"v{number}").set(number)
    assert OTHER not in {value for key in values(registry, "shown") for value in key}
    shown.clear()
    shown.labels("v1").set(1)
    assert values(registry, "shown") == {("v1",): 1.0}


def test_a_label_must_be_declared() -> None:
    with pytest.raises(AssertionError, match=r"\['colour'\] are not declared in core/telemetry/labels.py"):
        counter(MetricsRegistry(), "shown", "", "colour")


def test_values_that_code_lists_are_never_other_however_many_families_share_the_label() -> None:
    registry = MetricsRegistry()
    for family in range(9):
        shown = counter(registry, f"shown_{family}", "", "reason")
        for number in range(9):
            shown.labels(f"reason-{family}-{number}").inc()
        assert (OTHER,) not in values(registry, f"shown_{family}_total")
