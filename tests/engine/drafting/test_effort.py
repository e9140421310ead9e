"""How deep a costly proposer drafts, and the budget of what is not expected to pay."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prolepsis.engine.drafting.effort import (
    RETRY_DEPTH,
    DepthDecision,
    Effort,
    ExpectedDraft,
    LevelCost,
    MarginalCost,
)
from prolepsis.engine.drafting.explore import SHARES, Explore, Kind
from tests.engine.drafting.reference import best_drafting_gain, drafting_gain


class _Spent(Explore):
    """Grants nothing."""

    def grant(self, kind: Kind, cost: float) -> bool:
        return False


GOOD = ExpectedDraft((0.8, 0.64, 0.5, 0.4))
BAD = ExpectedDraft((0.05, 0.01))
COSTS = MarginalCost(token=0.03, ms=0.1)


def _with_cost(ms_per_level: float) -> Effort:
    effort = Effort(_Spent())
    effort.cost.learn(1, ms_per_level)
    return effort


def _depth(effort: Effort, *expected: ExpectedDraft, costs: MarginalCost = COSTS) -> int:
    return _decide(effort, *expected, costs=costs).depth


def _decide(effort: Effort, *expected: ExpectedDraft, costs: MarginalCost = COSTS) -> DepthDecision:
    return effort.decide(expected, costs)


def test_deeper_while_a_level_gains_more_than_it_costs() -> None:
    assert _depth(_with_cost(1.0), GOOD) == 4
    assert _depth(_with_cost(5.0), GOOD) == 2
    assert _depth(_with_cost(50.0), GOOD) == 0


def test_where_one_pass_drafts_all_levels_it_is_all_or_nothing() -> None:
    effort = Effort(_Spent(), one_pass=True)
    effort.cost.learn(effort.paid(3), 5.0)
    assert _depth(effort, GOOD) == 4, "5 ms for all levels, where each would cost as much: 2"
    assert effort.threshold(1, COSTS) == COSTS.token
    effort = Effort(_Spent(), one_pass=True)
    effort.cost.learn(effort.paid(4), 50.0)
    assert _depth(effort, GOOD) == 0


falling = st.lists(st.floats(0.01, 1.0), max_size=4).map(lambda chances: tuple(sorted(chances, reverse=True)))


costs_of_steps = st.builds(MarginalCost, st.floats(0.0, 0.4), st.floats(0.01, 1.0))


@given(
    st.lists(st.builds(ExpectedDraft, falling, falling), min_size=1, max_size=4),
    costs_of_steps,
    st.lists(st.floats(0.1, 5.0), min_size=1, max_size=5),
)
def test_finds_the_best_depth_and_sequences_of_all(
    expected: list[ExpectedDraft], costs: MarginalCost, calls: list[float]
) -> None:
    effort = Effort(_Spent())
    for call_ms in calls:
        effort.cost.learn(1, call_ms)
    decision = effort.decide(expected, costs)
    asked = [expected_draft for expected_draft, does in zip(expected, decision.asked, strict=True) if does]
    chosen = drafting_gain(asked, decision.depth, costs, effort.cost.ms)
    assert chosen == pytest.approx(best_drafting_gain(expected, costs, effort.cost.ms))


def test_sequences_share_the_cost_of_a_level() -> None:
    assert _depth(_with_cost(5.0), GOOD) < 4
    assert _depth(_with_cost(5.0), *[GOOD] * 8) == 4


def test_gains_are_those_beside_the_free_draft() -> None:
    assert _depth(_with_cost(3.0), ExpectedDraft(GOOD.survivals, (0.95, 0.9, 0.85, 0.8))) == 0
    assert _depth(_with_cost(2.0), ExpectedDraft(GOOD.survivals, (0.3,))) == 4  # the free draft is short
    decision = _decide(_with_cost(3.0), ExpectedDraft(GOOD.survivals, (0.99,) * 4), GOOD)
    assert decision.asked == (False, True)


def test_a_sequence_that_gains_nothing_is_left_out() -> None:
    effort = _with_cost(21.0)
    expected = [GOOD] * 4 + [ExpectedDraft((0.02,))]
    assert _decide(effort, *expected).asked == (True,) * 4 + (False,)


def test_nodes_of_the_next_level_pay_their_row_and_their_share_of_it() -> None:
    effort = Effort(_Spent())
    effort.cost.learn(2, 2.0)
    assert effort.threshold(1, COSTS) == pytest.approx(0.03 + 0.1)
    assert effort.threshold(16, COSTS) == pytest.approx(0.03 + 0.1 / 16)


def test_a_proposer_that_does_not_pay_is_retried_as_its_budget_lets() -> None:
    explore = Explore()
    effort, num_retries = Effort(explore), 0
    effort.cost.learn(1, 5.0)
    for _ in range(10_000):
        explore.earn(1)
        num_retries += _depth(effort, BAD) == RETRY_DEPTH
    spent = num_retries * 3 * 5.0 * COSTS.ms
    assert 0.5 * SHARES["retry"] * 10_000 < spent <= SHARES["retry"] * 10_000 + 3.0


def test_tokens_without_survival_are_not_drafted() -> None:
    assert _decide(_with_cost(1.0), ExpectedDraft(())) == DepthDecision(0, (False,))


def test_the_first_call_of_unknown_cost_is_shallow() -> None:
    assert _depth(Effort(_Spent()), ExpectedDraft((0.9,) * 16)) == 3


def test_a_slow_start_is_forgotten_at_once_and_a_hiccup_counts_little() -> None:
    cost = LevelCost()
    cost.learn(3, 3000.0)
    cost.learn(3, 3.0)
    assert cost.ms == pytest.approx(1.0)
    for _ in range(20):
        cost.learn(3, 3.0)
    cost.learn(3, 3000.0)
    assert cost.ms < 1.2


@pytest.mark.parametrize(("num_levels", "ms"), [(0, 5.0), (3, 0.0)])
def test_a_call_that_drafted_nothing_tells_nothing(num_levels: int, ms: float) -> None:
    cost = LevelCost()
    cost.learn(num_levels, ms)
    assert cost.ms == 0.0


def test_a_retry_is_for_a_few_sequences_and_others_each_time() -> None:
    explore = Explore()
    effort, asked = Effort(explore), list[set[int]]()
    effort.cost.learn(1, 75.0)
    for _ in range(10_000):
        explore.earn(10)
        decision = _decide(effort, *[BAD] * 10)
        if decision.depth:
            asked.append({i for i, is_asked in enumerate(decision.asked) if is_asked})
    assert asked[:3] == [{0, 1, 2, 3}, {4, 5, 6, 7}, {0, 1, 8, 9}]


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
