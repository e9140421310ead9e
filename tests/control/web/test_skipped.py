"""What fails for one item is left out and named; the others go on. A failure of the store is no fault of an item."""

from collections.abc import Mapping, Sequence

import pytest
from prometheus_client import CollectorRegistry

from prolepsis.control.web.errors import RequestRefused
from prolepsis.control.web.skipped import LONGEST_WAIT_S, Skipped, SkippedFeature
from prolepsis.core.errors import StoreUnavailable
from tests.clock import Clock

BAD = RequestRefused("no text", code="invalid_text")


def went(skipped: Skipped, items: Sequence[str], bad: Mapping[str, Exception]) -> list[str]:
    """Go over the items once; return those that were reached, failing ones too."""
    reached = []
    for item in skipped.due("corpora", items, str):
        with skipped.contained("corpora", item, f"tenant of {item}"):
            reached.append(item)
            if item in bad:
                raise bad[item]
    return reached


def test_the_others_go_on_and_the_waits_of_a_bad_one_grow() -> None:
    clock = Clock()
    skipped, bad = Skipped(clock), {"b": BAD}
    assert went(skipped, "abc", bad) == ["a", "b", "c"]
    assert went(skipped, "abc", bad) == ["a", "c"]
    [shown] = skipped.all
    assert (shown.kind, shown.item, shown.owner, shown.error) == ("corpora", "b", "tenant of b", "no text")
    waits = []
    for _ in range(12):
        waits.append(skipped.all[0].due - clock())
        clock.now += waits[-1]
        assert went(skipped, "abc", bad) == ["a", "b", "c"]
    assert waits == sorted(waits)
    assert waits[-1] == LONGEST_WAIT_S
    assert skipped.all[0].since == shown.since
    clock.now += LONGEST_WAIT_S
    assert went(skipped, "abc", {}) == ["a", "b", "c"]
    assert not skipped.all


def test_an_item_that_is_gone_is_forgotten_and_those_of_other_kinds_are_not() -> None:
    skipped = Skipped(Clock())
    with skipped.contained("batches", "b", ""):
        raise ValueError("a text that may be a client's")
    assert went(skipped, "ab", {"b": BAD}) == ["a", "b"]
    assert went(skipped, "a", {}) == ["a"]
    assert [(one.kind, one.error) for one in skipped.all] == [("batches", "ValueError")]


def test_a_store_that_is_unavailable_is_no_fault_of_the_item() -> None:
    skipped = Skipped(Clock())
    with pytest.raises(StoreUnavailable):
        went(skipped, "ab", {"a": StoreUnavailable("gone")})
    assert not skipped.all


async def test_the_gauge_follows_each_kind_down_to_0() -> None:
    skipped, registry = Skipped(Clock()), CollectorRegistry()
    feature = SkippedFeature(skipped, registry)
    counts = []
    for bad in ({"b": BAD}, {}):
        went(skipped, "ab" if bad else "a", bad)
        await feature.tick()
        counts.append(registry.get_sample_value("prolepsis_skipped_items", {"kind": "corpora"}))
    assert counts == [1.0, 0.0]
