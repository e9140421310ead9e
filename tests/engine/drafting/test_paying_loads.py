"""Where drafts can pay: curves whose answer is known by hand."""

from collections.abc import Callable

import pytest

from prolepsis.engine.drafting.cost import PROFILE_CONTEXTS, PROFILE_TOKENS, CostCurve
from prolepsis.engine.drafting.window import BEST_ACCEPTANCE, DraftWindow, StepLoad, paying_loads

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
