from prolepsis.spec.effort import Effort, Offer

GOOD = Offer((0.8, 0.64, 0.5, 0.4), 0.0)
BAD = Offer((0.05, 0.01), 0.0)


def _with_cost(ms_per_level: float) -> Effort:
    effort = Effort()
    effort.learn(1, ms_per_level)
    return effort


def test_deeper_while_a_level_gains_more_than_it_costs() -> None:
    assert _with_cost(1.0).depth([GOOD], price=0.03, tokens_per_ms=0.1) == 4
    assert _with_cost(5.0).depth([GOOD], price=0.03, tokens_per_ms=0.1) == 2
    assert _with_cost(50.0).depth([GOOD], price=0.03, tokens_per_ms=0.1) == 0


def test_samples_share_the_cost_of_a_level() -> None:
    assert _with_cost(10.0).depth([GOOD] * 8, price=0.03, tokens_per_ms=0.1) == 4


def test_not_where_a_free_draft_is_as_good() -> None:
    assert _with_cost(1.0).depth([Offer(GOOD.survivals, 3.0)], price=0.03, tokens_per_ms=0.1) == 0


def test_probes_back_off_and_start_anew_after_success() -> None:
    effort, asked = _with_cost(5.0), []
    for step in range(1, 150):
        if effort.depth([BAD], price=0.03, tokens_per_ms=0.1):
            asked.append(step)
    assert asked == [16, 48, 112]
    assert effort.depth([GOOD], price=0.03, tokens_per_ms=0.1)
    assert [bool(effort.depth([BAD], price=0.03, tokens_per_ms=0.1)) for _ in range(16)] == [False] * 15 + [True]
