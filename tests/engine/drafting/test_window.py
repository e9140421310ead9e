"""The window takes the best prefix; where no draft can pay is known by the cost curve alone."""

import math
from collections.abc import Callable
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prolepsis.engine.drafting.acceptance import survivals
from prolepsis.engine.drafting.candidate import ScoredDraft, merge
from prolepsis.engine.drafting.cost import PROFILE_CONTEXTS, PROFILE_TOKENS, CostCurve, flat_cost, profile_cost
from prolepsis.engine.drafting.draft import Draft
from prolepsis.engine.drafting.window import BEST_ACCEPTANCE, DraftWindow, StepLoad, paying_loads
from tests.engine.drafting.drafts import rates, trees
from tests.engine.drafting.reference import best_pace, closed_sets, pace

increments = st.lists(st.floats(0.0, 3.0), min_size=24, max_size=24)


def _load(num_sequences: int, budget: int = 1000) -> StepLoad:
    return StepLoad(num_sequences, 0, budget)


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[Draft | None], list[tuple[float, ...]]]:
    """Return drafts of up to three sequences with their survivals: none, chains and trees, or two merged into one."""
    drafts: list[Draft | None] = []
    alive: list[tuple[float, ...]] = []
    for _ in range(draw(st.integers(1, 3))):
        scored: list[ScoredDraft] = []
        for name in draw(st.sampled_from([(), ("a",), ("a", "b")])):
            draft = draw(trees(name, max_size=4))
            scored.append(ScoredDraft(draft, survivals(draft, draw(rates(draft, least=0.3))), 0.0))
        if len(scored) == 2:
            union = merge(scored[0], scored[1], limit=5)
            scored = [ScoredDraft(union, union.survival, 0.0)]
        drafts.append(scored[0].draft if scored else None)
        alive.append(scored[0].survivals if scored else ())
    return drafts, alive


@given(batches(), increments, st.integers(0, 12), st.integers(0, 5), st.floats(0.0, 5.0))
def test_finds_the_best_of_all_choices(
    batch: tuple[list[Draft | None], list[tuple[float, ...]]],
    increments: list[float],
    budget: int,
    num_prefill: int,
    spent_ms: float,
) -> None:
    drafts, alive = batch
    cost = CostCurve(range(1, 26), (0,), [[m] for m in accumulate([10.0, *increments])])
    load = StepLoad(len(drafts) + num_prefill, 0, budget)
    cut = DraftWindow(cost, overhead_ms=0.7).cut(alive, load, spent_ms)
    for draft, kept in zip(drafts, cut.nodes, strict=True):
        assert draft is None or tuple(kept) in set(closed_sets(draft)), "a node comes with its parent"
    assert sum(map(len, cut.nodes)) <= budget
    optimum = best_pace(drafts, alive, cost, load, 0.7 + spent_ms)
    found = pace(cut.nodes, alive, cost, load, 0.7 + spent_ms)
    assert cut.tokens / cut.ms == pytest.approx(found)
    plain = not any(cut.nodes) and optimum <= 1.01 * found  # the least gain
    assert plain or found == pytest.approx(optimum)


def test_the_nodes_of_a_tree_are_kept_with_their_parents() -> None:
    alive, parents = (0.6, 0.1, 0.3, 0.25, 0.25), (-1, 0, -1, 2, 3)
    cut = DraftWindow(flat_cost(10.0, 0.8)).cut([alive], _load(1))
    kept = cut.nodes[0]
    assert kept == [0, 2, 3, 4]
    assert all(parents[node] in (-1, *kept) for node in kept)


def test_no_drafts_no_rows() -> None:
    cut = DraftWindow(flat_cost()).cut([(), ()], _load(2))
    assert cut.nodes == [[], []]
    assert cut.tokens == 2.0


def test_likely_slots_of_one_sequence_go_before_unlikely_ones_of_another() -> None:
    cut = DraftWindow(flat_cost(10.0, 0.1)).cut([(0.9, 0.8, 0.7), (0.2, 0.1)], _load(2, budget=3))
    assert cut.nodes == [[0, 1, 2], []]


def test_a_step_in_the_curve_is_not_climbed_for_little_but_for_much() -> None:
    window = DraftWindow(CostCurve((1, 4, 5, 16), (0,), ((10.0,), (10.0,), (16.0,), (16.0,))))
    assert [len(n) for n in window.cut([(0.5, 0.4, 0.3, 0.2, 0.1)], _load(1)).nodes] == [3]
    assert [len(n) for n in window.cut([(0.95,) * 12], _load(1)).nodes] == [12]


def test_cuts_end_where_a_shape_ends() -> None:
    """Rows of a captured shape are paid in any case: a draft fills the shape or stays below the step."""
    window = DraftWindow(profile_cost(lambda rows, context: 5.0 + 2.0 * math.ceil(math.log2(rows)), contexts=(64,)))
    for best in (0.9, 0.8, 0.7, 0.6, 0.5):
        drafts = [tuple(best**depth for depth in range(1, 40))]
        rows = 1 + len(window.cut(drafts, _load(1)).nodes[0])
        assert rows & (rows - 1) == 0, f"{rows} rows"


def test_speculation_stops_when_the_machine_is_full() -> None:
    """Where a pass costs in proportion to its rows, only near-certain tokens pay."""
    cut = DraftWindow(flat_cost(0.01, 1.0), overhead_ms=0.0).cut([(0.7, 0.5)] * 16, _load(16))
    assert cut.nodes == [[]] * 16


def test_prefill_in_the_pass_does_not_make_rows_look_cheap() -> None:
    """A draft that does not pay among 16 decoding sequences does not pay beside a prefill chunk either."""
    window = DraftWindow(flat_cost(2.0, 1.0))
    drafts = [(0.8, 0.6)] * 16
    assert window.cut(drafts, StepLoad(16, 0, 1000)).nodes == [[]] * 16
    beside = window.cut(drafts, StepLoad(16 + 400, 0, 1000))
    assert beside.nodes == [[]] * 16
    assert beside.ms == pytest.approx(window.cut(drafts, StepLoad(16, 0, 1000)).ms)
    assert window.marginal_ms(StepLoad(416, 0, 1000)) == pytest.approx(window.marginal_ms(StepLoad(16, 0, 1000)))
    assert window.plain_pace(StepLoad(416, 0, 1000), 16) == window.plain_pace(StepLoad(16, 0, 1000), 16)


def test_time_spent_on_drafts_counts_however_much_is_verified() -> None:
    """A step made dear by drafting makes rows of it relatively cheap: b * G falls with G."""
    window, drafts = DraftWindow(flat_cost(10.0, 2.0)), [(0.3, 0.25, 0.2, 0.15)]
    few, more = window.cut(drafts, _load(1)), window.cut(drafts, _load(1), spent_ms=8.0)
    assert len(few.nodes[0]) < len(more.nodes[0])
    assert more.ms == pytest.approx(window.cost.ms(1 + len(more.nodes[0]), 0) + 0.7 + 8.0)


HERE = "drafts cannot pay on this model here"


def curve(ms: Callable[[int, int], float], tokens: tuple[int, ...] = PROFILE_TOKENS) -> CostCurve:
    return CostCurve(
        tokens, PROFILE_CONTEXTS, [[ms(count, context) for context in PROFILE_CONTEXTS] for count in tokens]
    )


def test_where_tokens_cost_nothing_drafts_can_pay_everywhere() -> None:
    found = paying_loads(curve(lambda tokens, context: 1000.0))
    assert (found.contexts, found.most) == (PROFILE_CONTEXTS, (32, 32, 32, 32))
    assert found.describe() == "drafts can pay at all measured sizes: 32 at once, 8,192 tokens of context"


def test_where_each_token_costs_a_pass_drafts_can_pay_nowhere() -> None:
    found = paying_loads(curve(lambda tokens, context: 1000.0 * tokens))
    assert found.most == (0, 0, 0, 0)
    assert found.describe() == f"{HERE}, at any measured size"


def test_they_can_pay_up_to_the_knee_of_the_curve() -> None:
    """Tokens are free up to 16, and then cost a 16th of a pass, of which a draft token brings less than a 16th."""
    found = paying_loads(curve(lambda tokens, context: 1000.0 * max(1.0, tokens / 16)))
    assert found.most == (15, 15, 15, 15)
    assert found.describe() == f"{HERE} beyond 15 at once"


def test_a_little_gain_is_none() -> None:
    """A draft token takes 0.89 of a pass and brings 0.9 tokens: a step is better by half a percent."""
    tight = curve(lambda tokens, context: 1000.0 * (1 + 0.89 * (tokens - 1)))
    assert DraftWindow(tight).cut([[BEST_ACCEPTANCE]], StepLoad(1, 64, 1)).nodes == [[0]]
    assert paying_loads(tight).most[0] == 0


def test_each_context_has_its_own_limit_and_neighbours_are_joined() -> None:
    def ms(tokens: int, context: int) -> float:
        knee = {64: 32, 512: 8, 2048: 8, 8192: 1}[context]
        return 1000.0 * max(1.0, tokens / knee)

    found = paying_loads(curve(ms))
    assert found.most == (31, 7, 7, 0)
    assert found.describe() == (
        f"{HERE} beyond 31 at once with 64 tokens of context, or beyond 7 at once with 512 to 2,048 tokens of context, "
        "or at all with 8,192 tokens of context"
    )


@pytest.mark.parametrize(("longest", "measured"), [(64, 32), (8, 4), (1, 0)])
def test_only_loads_that_were_measured_count(longest: int, measured: int) -> None:
    tokens = tuple(count for count in PROFILE_TOKENS if count <= longest)
    found = paying_loads(curve(lambda tokens, context: 1000.0, tokens))
    assert (found.measured, set(found.most)) == (measured, {measured})


_CHAIN = tuple(0.7**depth for depth in range(1, 9))


def _paces(window: DraftWindow, *urgencies: int) -> tuple[list[int], list[float]]:
    """Return the nodes of each draft, and the tokens per millisecond of each sequence."""
    cut = window.cut([_CHAIN] * 8, _load(8), 0.0, urgencies)
    return [len(nodes) for nodes in cut.nodes], [(1.0 + sum(_CHAIN[: len(nodes)])) / cut.ms for nodes in cut.nodes]


@pytest.mark.parametrize("token_ms", [0.02, 0.1, 0.4])
def test_who_is_behind_gets_what_who_is_ahead_gives_and_others_keep_their_part(token_ms: float) -> None:
    window = DraftWindow(flat_cost(8.0, token_ms))
    sizes, before = _paces(window)
    weighed, after = _paces(window, 1, -1, *[0] * 6)
    assert after[0] > 1.02 * before[0]
    assert weighed[1] < sizes[1]
    assert min(after[2:]) >= 0.94 * before[2], "each; on average 0.95"
    assert sum(after[2:]) >= 0.95 * sum(before[2:])


def test_where_no_sequence_is_behind_the_best_set_is_chosen() -> None:
    window = DraftWindow(flat_cost(8.0, 0.1))
    assert _paces(window, *[-1] * 4, *[0] * 4) == _paces(window)


def test_rows_that_draft_nothing_keep_their_pace_too() -> None:
    """All costs of drafts are theirs, so that no draft makes the pass longer by more than a twentieth."""
    window, load = DraftWindow(flat_cost(8.0, 0.4)), StepLoad(16, 0, 1000, num_sequences=16)
    free, urgent = window.cut([_CHAIN], load), window.cut([_CHAIN], load, 0.0, [1])
    assert len(free.nodes[0]) < len(urgent.nodes[0]) < len(_CHAIN)
    assert urgent.ms <= free.ms / 0.95
