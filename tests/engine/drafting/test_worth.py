import math

import pytest

from prolepsis.engine.drafting.cost import CostCurve
from prolepsis.engine.drafting.explore import Explore
from prolepsis.engine.drafting.window import DraftWindow, StepLoad
from prolepsis.engine.drafting.worth import CostCorrection, StepComparison, StepCost, load_band

UNKNOWN = CostCorrection(1.0, 0.4)
"""Drafts seem cheap, so that some are verified and their cost becomes known."""


def _plain(ms: float, number: int = 4, drafting_ms: float = 0.0) -> StepCost:
    """A step predicted at 10 ms."""
    return StepCost(number, number, 0, ms, 10.0, drafting_ms)


def _drafted(ms: float, number: int = 4, num_tokens: int = 8) -> StepCost:
    """A step predicted at 10 ms without drafts; making them took 0.5 ms, verifying them was predicted to take 2."""
    return StepCost(number, num_tokens, 4, ms, 10.0, 0.5, 2.0)


def _compared(*steps: StepCost, times: int = 200) -> StepComparison:
    comparison = StepComparison(Explore())
    for _ in range(times):
        for step in steps:
            comparison.observe(step)
    return comparison


@pytest.mark.parametrize(
    ("plain_ms", "drafted_ms", "expected"),
    [
        (10.0, 12.5, (1.0, 1.0, 0.0)),
        (10.0, 14.5, (1.0, 1.0, 0.5)),
        (10.0, 11.5, (1.0, 0.5, 0.0)),
        (5.0, 6.5, (0.5, 0.5, 0.0)),
        (5.0, 8.5, (0.5, 0.5, 0.5)),
    ],
)
def test_drafts_that_take_longer_than_predicted_do_so_by_token_and_others_less_in_proportion(
    plain_ms: float, drafted_ms: float, expected: tuple[float, float, float]
) -> None:
    found = _compared(_plain(plain_ms), _drafted(drafted_ms)).correction(4)
    assert (found.plain, found.verifying, found.token_ms) == pytest.approx(expected, rel=0.05, abs=0.01)


def test_rows_that_were_not_free_when_profiled_cost_little_more() -> None:
    """A pass of 5 rows was predicted as one of 1, while memory was busy; of 17 rows it was not."""
    comparison = _compared(_plain(10.0, 1), StepCost(1, 2, 4, 14.0, 10.0, 0.0, 0.0))
    load = StepLoad(1, 0, 64, comparison.correction(1))
    window = DraftWindow(CostCurve((1, 5, 17), (0,), ((10.0,), (10.0,), (22.0,))), overhead_ms=0.0)
    assert window.added_ms(load, 4) == pytest.approx(4.0, rel=0.05)
    assert window.added_ms(load, 16) == pytest.approx(12.0 + 16.0, rel=0.05)


def test_learning_of_proposers_is_not_part_of_a_plain_step() -> None:
    found = _compared(_plain(11.0, drafting_ms=1.0), _drafted(12.5)).correction(4)
    assert (found.plain, found.verifying) == pytest.approx((1.0, 1.0), rel=0.05)


def test_no_ratio_without_a_step_to_compare_with() -> None:
    assert _compared(_drafted(50.0)).correction(4) == UNKNOWN


def test_each_load_is_compared_for_itself() -> None:
    comparison = _compared(_plain(10.0), _drafted(16.5))
    assert comparison.correction(16) == UNKNOWN
    for _ in range(200):
        comparison.observe(_plain(10.0, 16))
        comparison.observe(_drafted(12.5, 16))
    assert comparison.correction(16).token_ms == pytest.approx(0.0, abs=0.1)
    assert comparison.correction(3).token_ms == pytest.approx(1.0, rel=0.05)


def test_one_slow_step_changes_little_and_a_change_that_stays_is_followed() -> None:
    comparison = _compared(_plain(10.0), _drafted(12.5))
    comparison.observe(_drafted(500.0))
    assert comparison.correction(4).token_ms < 0.1
    for _ in range(200):
        comparison.observe(_plain(10.0))
        comparison.observe(_drafted(18.5))
    assert comparison.correction(4).token_ms == pytest.approx(1.5, rel=0.15)


def test_a_cost_that_is_too_high_fades_while_no_draft_is_verified() -> None:
    comparison = _compared(_plain(10.0), _drafted(60.0))
    known = comparison.correction(4).token_ms
    for _ in range(40):
        comparison.observe(_plain(10.0))
    assert comparison.correction(4).token_ms == known, "no sequence might draft"
    for _ in range(400):
        comparison.observe(_plain(10.0), is_idle=True)
    assert comparison.correction(4).token_ms < 0.1 * known


class _Engine:
    """Compares steps of four sequences, with a budget that they fill."""

    def __init__(self) -> None:
        self.explore = Explore()
        self.comparison = StepComparison(self.explore)

    def wants_reference(self) -> bool:
        self.explore.earn(4)
        return self.comparison.wants_reference(4)


def _references(engine: _Engine, num_tokens: int, steps: int = 4000) -> int:
    number = 0
    for _ in range(steps):
        if engine.wants_reference():
            number += 1
            engine.comparison.observe(_plain(10.0))
        else:
            engine.comparison.observe(_drafted(12.0, num_tokens=num_tokens))
    return number


def test_references_are_many_where_they_lose_nothing_and_few_where_they_lose() -> None:
    assert _references(_Engine(), num_tokens=4) == pytest.approx(4000 / 8, rel=0.02)
    engine = _Engine()
    _references(engine, num_tokens=12)  # the first ones come sooner
    number = _references(engine, num_tokens=12)  # a step without drafts emits a third in 10/12 of the time
    lost = number * (12 * 10 / 12 - 4) / (4000 * 4)
    assert 0.002 < lost < 0.0035


@pytest.mark.parametrize(
    "step",
    [
        StepCost(1, 0, 4, 3.0, 2.0, 0.1, 0.5),  # its grammar failed: nothing was emitted
        StepCost(1, 1, 0, 0.0, 2.0, 0.0),
        StepCost(1, 1, 0, 1.0, 2.0, 1.0),  # all of its time made drafts
        StepCost(1, 2, 4, math.nan, 2.0, 0.1, 0.5),
        StepCost(1, 2, 4, math.inf, 2.0, 0.1, 0.5),
        StepCost(1, 2, 4, 3.0, 0.0, 0.1, 0.5),
        StepCost(1, 2, 4, 3.0, 2.0, 0.1, -0.5),
    ],
)
def test_a_step_that_cannot_be_compared_tells_nothing(step: StepCost) -> None:
    comparison = _compared(step, times=4)
    comparison.observe(StepCost(1, 1, 0, 2.0, 2.0, 0.0))
    comparison.observe(step)
    assert not any(comparison.wants_reference(1) for _ in range(7))
    assert comparison.correction(1) == UNKNOWN


def test_loads_are_bands_up_to_powers_of_two() -> None:
    assert [load_band(n) for n in (1, 2, 3, 4, 5, 8, 9, 16, 17, 32)] == [0, 1, 2, 2, 3, 3, 4, 4, 5, 5]
