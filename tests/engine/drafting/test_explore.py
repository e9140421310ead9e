"""One budget for what is not expected to pay: each kind gets its share, and no more."""

import pytest

from prolepsis.engine.drafting.explore import SHARES, Explore, Kind


@pytest.mark.parametrize("kind", SHARES)
@pytest.mark.parametrize(("number", "cost"), [(1, 0.3), (16, 5.0), (64, 200.0)])
def test_each_kind_loses_its_share_of_the_tokens(kind: Kind, number: int, cost: float) -> None:
    explore, lost = Explore(), 0.0
    for _ in range(20_000):
        explore.earn(number)
        lost += cost * explore.grant(kind, cost)
    share = SHARES[kind] * 20_000 * number
    assert share - cost < lost <= share + 1.0 + cost


def test_a_kind_that_has_spent_its_part_takes_none_of_another() -> None:
    explore = Explore()
    while explore.grant("trial", 0.5):
        pass
    assert explore.grant("reference", 0.5)


def test_what_costs_nothing_is_granted_always() -> None:
    explore = Explore()
    while explore.grant("reference", 0.5):
        pass
    assert explore.grant("reference", 0.0)
    assert explore.grant("reference", -1.0), "steps with drafts are slower"


def test_what_was_not_lost_comes_back_and_what_was_lost_beyond_is_owed() -> None:
    explore = Explore()
    assert explore.grant("trial", 5.0)
    assert not explore.grant("trial", 0.5)
    explore.charge("trial", -5.0)
    assert explore.grant("trial", 0.5)
    explore.charge("trial", 1000.0)
    for _ in range(int(9.0 / SHARES["trial"])):
        explore.earn(1)
    assert explore.grant("trial", 0.5), "no more is owed than some tokens"


def test_all_kinds_together_lose_less_than_two_percent() -> None:
    assert sum(SHARES.values()) < 0.02
