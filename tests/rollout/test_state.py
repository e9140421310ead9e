"""States and events survive a restart, and replicas do not overwrite each other."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from prolepsis.policy.rollout_terms import RolloutSettings, ladder
from prolepsis.rollout.machine import RolloutEvent, RolloutState, step
from tests.rollout.rollout import ERRORS, NEW, SETTINGS, SHADOW_ERRORS, by_hand, counts, running_in

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


def test_what_is_not_a_state_is_refused() -> None:
    with pytest.raises(ValidationError):
        RolloutState.from_json('{"rollout_id": "r", "plan_version": 1, "phase": "sideways"}')


def test_of_two_replicas_that_step_at_once_one_is_stored() -> None:
    stored = by_hand(NEW, "start", 0.0)
    ours, theirs = step(stored, counts(0, 0.0), 20.0, SETTINGS)[0], by_hand(stored, "rollback", 20.0)
    assert ours.follows(stored)
    assert theirs.follows(stored)
    assert not theirs.follows(ours)
    assert not replace(theirs, rollout_id="r2").follows(stored)
    assert NEW.follows(None)


def test_a_ladder_grows_and_begins_in_shadow_where_that_can_decide() -> None:
    stages = ladder((ERRORS,), shadow_guardrails=(SHADOW_ERRORS,), manual_gate=True)
    assert [(s.name, s.share, s.manual_gate) for s in stages] == [
        ("shadow", 0.95, True),
        ("canary 1%", 0.01, True),
        ("canary 5%", 0.05, True),
        ("canary 25%", 0.25, True),
        ("canary 50%", 0.5, True),
    ]
    assert RolloutSettings(stages=stages).levels.num_stages == 5
    assert len(ladder((ERRORS,))) == 4


def test_a_canary_only_grows_and_leaves_the_control_alone() -> None:
    with pytest.raises(AssertionError, match="only grows"):
        RolloutSettings(stages=ladder((ERRORS,), shares=(0.5, 0.1)))
    with pytest.raises(AssertionError, match="standing control"):
        RolloutSettings(stages=ladder((ERRORS,), shares=(0.97,)))
