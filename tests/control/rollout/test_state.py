"""States and events survive a restart, and replicas do not overwrite each other."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from prolepsis.control.rollout.machine import RolloutEvent, RolloutState, step
from prolepsis.control.rollout.settings import RolloutSettings, stages
from tests.control.rollout.rollout import ERRORS, NEW, SETTINGS, SHADOW_ERRORS, by_hand, counts, running_in
from tests.control.rollout.stores import memory_store

TIMES = st.floats(allow_nan=False, allow_infinity=False)
STATES = st.builds(
    RolloutState, stage_since=TIMES, held_at=st.none() | TIMES, references=st.dictionaries(st.text(), TIMES)
)


@given(STATES)
def test_a_state_survives_being_stored(state: RolloutState) -> None:
    assert RolloutState.from_json(state.to_json()) == state


def test_an_event_survives_with_its_numbers() -> None:
    _, [event] = step(running_in(1), counts(1, 0.3), 0.0, SETTINGS)
    assert RolloutEvent.from_json(event.to_json()) == event


def test_an_invalid_state_is_refused() -> None:
    with pytest.raises(ValidationError):
        RolloutState.from_json('{"rollout_id": "r", "policy_version": 1, "phase": "sideways"}')


def test_one_of_two_simultaneous_steps_is_stored() -> None:
    stored = by_hand(NEW, "start", 0.0)
    ours, theirs = step(stored, counts(0, 0.0), 20.0, SETTINGS)[0], by_hand(stored, "rollback", 20.0)
    for first, second in ((ours, theirs), (theirs, ours)):
        store = memory_store()
        assert store.swap(NEW, ())
        assert store.swap(stored, ())
        assert store.swap(first, ())
        assert not store.swap(second, ())
        assert store.swap(replace(second, rollout_id="r2"), ())
        assert store.states() == {"r1": first, "r2": replace(second, rollout_id="r2")}


def test_stages_grow_and_begin_in_shadow_where_that_can_decide() -> None:
    found = stages((ERRORS,), shadow_guardrails=(SHADOW_ERRORS,), manual_gate=True)
    assert [(s.name, s.share, s.manual_gate) for s in found] == [
        ("shadow", 0.95, True),
        ("canary 1%", 0.01, True),
        ("canary 5%", 0.05, True),
        ("canary 25%", 0.25, True),
        ("canary 50%", 0.5, True),
    ]
    assert RolloutSettings(stages=found).levels.num_stages == 5
    assert len(stages((ERRORS,))) == 4


def test_a_canary_only_grows_and_leaves_the_control_alone() -> None:
    with pytest.raises(AssertionError, match="only grows"):
        RolloutSettings(stages=stages((ERRORS,), shares=(0.5, 0.1)))
    with pytest.raises(AssertionError, match="the holdout stays"):
        RolloutSettings(stages=stages((ERRORS,), shares=(0.97,)))
