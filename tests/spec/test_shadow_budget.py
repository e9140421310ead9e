"""Drafting in shadow has its share of the time, in turns, and no more."""

from collections import Counter
from math import inf

from prolepsis.spec.shadow_budget import ShadowBudget


def test_without_a_bound_whoever_is_due_drafts() -> None:
    budget = ShadowBudget(inf)
    budget.spend(10.0, 2)
    assert budget.draw([0, 3, 5]) == [0, 3, 5]


def test_its_share_of_the_time_is_kept_and_everybody_has_a_turn() -> None:
    budget = ShadowBudget(0.02)
    spent, drawn = 0.0, Counter[int]()
    for _ in range(1000):
        due = budget.draw(list(range(8)))
        if due:
            drawn.update(due)
            spent += 0.0001 * len(due)
            budget.spend(0.0001 * len(due), len(due))
        budget.earn(0.010)
    assert 0.19 < spent <= 0.0001 + 0.02 * 1000 * 0.010
    assert max(drawn.values()) - min(drawn.values()) < 0.1 * max(drawn.values())


def test_a_draft_dearer_than_a_step_gives_is_paid_back_before_the_next() -> None:
    budget = ShadowBudget(0.01)
    drafted = []
    for step in range(1000):
        budget.earn(0.010)
        if budget.draw([0, 1]):
            drafted.append(step)
            budget.spend(0.005, 1)
    assert 19 <= len(drafted) <= 21
    assert budget.draw([]) == []


def test_credit_does_not_pile_up_and_none_is_none() -> None:
    budget = ShadowBudget(0.5)
    for _ in range(1000):
        budget.earn(1.0)
    budget.spend(0.003, 1)
    assert budget.draw([0]) == []
    nothing = ShadowBudget(0.0)
    nothing.earn(1.0)
    assert nothing.draw([0]) == []
