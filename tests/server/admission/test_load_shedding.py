"""The levels of load shedding: the age that leads to each, and that they neither flap nor skip on the way down."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prolepsis.core.plan import SpecPlan
from prolepsis.server.admission.load_shedding import (
    BATCH_WAITS,
    CALM,
    LOW_REFUSED,
    PLAIN,
    REASONS,
    SHALLOW,
    ShedSettings,
    ShedState,
    next_level,
    plan_at,
)

SETTINGS = ShedSettings((1.0, 2.0, 4.0, 8.0), hold_s=3.0)


def levels(observed: list[tuple[float, float]], settings: ShedSettings = SETTINGS) -> list[int]:
    """Return the level after each (seconds since the last, age)."""
    state, now, found = ShedState(), 0.0, []
    for seconds, age in observed:
        now += seconds
        state = next_level(state, age, now, settings)
        found.append(state.level)
    return found


def test_it_climbs_as_the_queue_ages() -> None:
    assert levels([(1, 0.9), (1, 1.0), (1, 2.0), (1, 4.0), (1, 8.0)]) == [
        CALM,
        SHALLOW,
        PLAIN,
        BATCH_WAITS,
        LOW_REFUSED,
    ]


def test_a_sudden_age_climbs_at_once() -> None:
    assert levels([(1, 100)]) == [LOW_REFUSED]


def test_it_comes_down_one_rung_at_a_time_after_calm() -> None:
    assert levels([(1, 8), (1, 0), (2.9, 0), (0.1, 0), (2.9, 0), (0.1, 0), (3, 0), (3, 0)]) == [4, 4, 4, 3, 3, 2, 1, 0]


def test_an_age_between_the_thresholds_keeps_the_rung() -> None:
    assert levels([(1, 2), *[(10, 1.5)] * 5]) == [PLAIN] * 6


def test_calm_that_is_interrupted_begins_again() -> None:
    assert levels([(1, 1), (1, 0), (2, 0.9), (1, 0), (2.9, 0), (0.1, 0)]) == [1, 1, 1, 1, 1, 0]


def test_calm_for_one_rung_is_not_calm_for_the_next() -> None:
    """Else a queue that was older comes down sooner than one that never was."""
    assert levels([(1, 4), (1, 1.5), (3, 1.5), (3, 0.9), (2.9, 0.9), (0.1, 0.9)]) == [3, 3, 2, 2, 2, 1]


def test_no_thresholds_no_rungs() -> None:
    assert levels([(1, 1e9)], ShedSettings(())) == [CALM]


observations = st.lists(st.tuples(st.floats(0.01, 5), st.floats(0, 20)), max_size=60)


@given(observations)
def test_it_never_flaps(observed: list[tuple[float, float]]) -> None:
    """Down by one level only, never within `hold_s` of the change before, up only for an age that asks for it."""
    now, changed_at, before = 0.0, -1e9, CALM
    for (seconds, age), level in zip(observed, levels(observed), strict=True):
        now += seconds
        if level < before:
            assert level == before - 1
            assert now - changed_at >= SETTINGS.hold_s
        if level > before:
            assert age >= SETTINGS.raise_at[level - 1]
        if level != before:
            changed_at, before = now, level


@given(observations, st.data())
def test_rungs_are_monotone_in_age(observed: list[tuple[float, float]], data: st.DataObject) -> None:
    """A queue that is older at every moment is never on a lower level."""
    older = [(seconds, age + data.draw(st.floats(0, 5))) for seconds, age in observed]
    assert all(low <= high for low, high in zip(levels(observed), levels(older), strict=True))


@pytest.mark.parametrize(("level", "depth"), [(CALM, 24), (SHALLOW, 6), (PLAIN, 0), (BATCH_WAITS, 0), (LOW_REFUSED, 0)])
def test_each_rung_has_its_plan(level: int, depth: int) -> None:
    plan = plan_at(level, SpecPlan(proposers=("suffix",)), version=7)
    assert (plan.version, plan.num_speculative_tokens, plan.proposers) == (7, depth, ("suffix",))
    assert plan.reason == (REASONS[level] or "default")


def test_shedding_never_turns_speculation_on() -> None:
    assert plan_at(SHALLOW, SpecPlan(num_speculative_tokens=0), 1).num_speculative_tokens == 0
    assert plan_at(SHALLOW, SpecPlan(num_speculative_tokens=1), 1).num_speculative_tokens == 1
    assert plan_at(SHALLOW, SpecPlan(fixed_depth=8), 1).fixed_depth == 6
