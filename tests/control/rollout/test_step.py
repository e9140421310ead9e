"""The rollout's machine: its steps, what is stored of it, and an operator's commands."""

from dataclasses import replace
from itertools import product
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from prolepsis.control.rollout.machine import Command, Phase, RolloutEvent, RolloutState, canary_share, command, step
from prolepsis.control.rollout.settings import RolloutSettings, stages
from prolepsis.core.errors import InvalidParameter
from tests.control.rollout.rollout import (
    ERRORS,
    NEW,
    SETTINGS,
    SHADOW_ERRORS,
    STAGES,
    by_hand,
    counts,
    memory_store,
    running_in,
)


def test_from_off_to_on() -> None:
    state, told, shares = by_hand(NEW, "start", 0.0), list[RolloutEvent](), []
    for now in range(0, 100, 5):
        shares.append(canary_share(state, SETTINGS))
        state, events = step(state, counts(state.stage, 0.0), float(now), SETTINGS)
        told += events
    assert state.phase == "gate"
    state = by_hand(state, "promote", 100.0)
    assert (state.phase, canary_share(state, SETTINGS)) == ("on", 0.95)
    assert [(e.kind, e.stage, e.at) for e in told] == [
        ("promoted", "shadow", 10.0),
        ("promoted", "canary 5%", 20.0),
        ("gate_reached", "canary 50%", 30.0),
    ]
    assert shares == sorted(shares)
    assert set(shares) == {0.0, 0.05, 0.5}


@pytest.mark.parametrize("phase", ["running", "gate", "held"])
@pytest.mark.parametrize("stage", [1, 2])
def test_harm_rolls_back_at_once_from_every_active_phase(phase: Phase, stage: int) -> None:
    before = replace(running_in(stage), phase=phase)
    state, [event] = step(before, counts(stage, 0.3), 0.0, SETTINGS)
    assert (state.phase, state.version, canary_share(state, SETTINGS)) == ("rolled_back", 4, 0.0)
    assert (event.kind, event.reason, event.policy_version, event.version) == ("rolled_back", "errors", "7", 4)
    assert event.judgement is not None
    assert event.judgement.guardrails[0].estimate == pytest.approx(0.3)


def test_a_pass_waits_for_the_least_time_of_the_stage() -> None:
    assert step(running_in(1), counts(1, 0.0), 9.9, SETTINGS) == (running_in(1), ())
    assert step(running_in(1), counts(1, 0.0), 10.0, SETTINGS)[0].stage == 2


def test_an_inconclusive_stage_waits_and_is_then_held_or_rolled_back() -> None:
    little = counts(1, 0.0, num_canary=25)
    assert step(running_in(1), little, 99.0, SETTINGS) == (running_in(1), ())
    held, [event] = step(running_in(1), little, 100.0, SETTINGS)
    assert (held.phase, event.kind, event.reason) == ("held", "held", "no judgement in time")
    assert canary_share(held, SETTINGS) == 0.05
    rolled, [event] = step(running_in(1), little, 100.0, replace(SETTINGS, on_inconclusive="rollback"))
    assert (rolled.phase, event.kind, event.reason) == ("rolled_back", "rolled_back", "no judgement in time")


def test_without_any_evidence_it_is_held_too() -> None:
    assert step(running_in(1), None, 100.0, SETTINGS)[0].phase == "held"


def test_errors_of_measurement_hold_and_do_not_roll_back() -> None:
    state, [event] = step(running_in(1), counts(1, 0.3, errors=6), 50.0, SETTINGS)
    assert (state.phase, event.reason) == ("held", "measurement_errors")


def test_evidence_of_another_stage_or_rollout_says_nothing() -> None:
    assert step(running_in(2), counts(1, 0.3), 50.0, SETTINGS) == (running_in(2), ())
    other = replace(counts(1, 0.3), rollout_id="r0")
    assert step(running_in(1), other, 50.0, SETTINGS) == (running_in(1), ())


@pytest.mark.parametrize("phase", ["off", "on", "rolled_back"])
def test_inactive_rollouts_do_not_change(phase: Phase) -> None:
    state = replace(running_in(1), phase=phase)
    assert step(state, counts(1, 0.3), 1e9, SETTINGS) == (state, ())


def test_gates_and_held_rollouts_wait_for_an_operator_without_limit() -> None:
    for phase in ("gate", "held"):
        state = replace(running_in(2), phase=phase)
        assert step(state, counts(2, 0.0), 1e9, SETTINGS) == (state, ())


def test_shadow_takes_limits_only() -> None:
    with pytest.raises(AssertionError, match="only limits"):
        replace(STAGES[1], kind="shadow")


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


MEANINGFUL = {
    "start": {"off", "rolled_back"},
    "hold": {"running", "gate"},
    "resume": {"held"},
    "promote": {"running", "gate", "held"},
    "rollback": {"running", "gate", "held", "on"},
}


@pytest.mark.parametrize(("what", "phase"), list(product(get_args(Command), get_args(Phase))))
def test_a_command_is_taken_or_refused_by_phase(what: Command, phase: Phase) -> None:
    state = replace(running_in(1), phase=phase)
    if phase in MEANINGFUL[what]:
        after, events = command(state, what, 5.0, SETTINGS, "somebody: reason")
        assert after.version == state.version + 1
        assert all((e.reason, e.version, e.at) == ("somebody: reason", after.version, 5.0) for e in events)
    else:
        with pytest.raises(InvalidParameter, match=f"is {phase}"):
            command(state, what, 5.0, SETTINGS, "")


def test_holding_stops_the_stages_clock() -> None:
    held = by_hand(running_in(1), "hold", 40.0)
    assert canary_share(held, SETTINGS) == 0.05
    assert step(held, counts(1, 0.0), 1000.0, SETTINGS) == (held, ())
    resumed = by_hand(held, "resume", 1040.0)
    assert (resumed.phase, resumed.stage_since) == ("running", 1000.0)
    assert step(resumed, None, 1099.0, SETTINGS)[0].phase == "running"
    assert step(resumed, None, 1100.0, SETTINGS)[0].phase == "held"


def test_a_gate_that_was_held_is_a_gate_again() -> None:
    gate = replace(running_in(2), phase="gate")
    assert by_hand(by_hand(gate, "hold", 1.0), "resume", 2.0).phase == "gate"


def test_a_resumed_stage_that_was_held_without_a_judgement_starts_its_time_again() -> None:
    held = replace(running_in(1), phase="held")
    resumed = by_hand(held, "resume", 500.0)
    assert step(resumed, None, 599.0, SETTINGS)[0].phase == "running"
    assert step(resumed, counts(1, 0.0), 510.0, SETTINGS)[0].stage == 2


@pytest.mark.parametrize("phase", ["running", "gate", "held"])
def test_promoting_by_hand_asks_for_no_judgement(phase: Phase) -> None:
    after, [event] = command(replace(running_in(1), phase=phase, held_at=1.0), "promote", 9.0, SETTINGS, "somebody")
    assert (after.phase, after.stage, after.stage_since, after.held_at) == ("running", 2, 9.0, None)
    assert (event.kind, event.stage, event.judgement) == ("promoted", "canary 5%", None)
    on, [event] = command(replace(running_in(2), phase=phase), "promote", 9.0, SETTINGS, "somebody")
    assert (on.phase, event.kind) == ("on", "completed")


def test_rolling_back_takes_everything_back_and_starting_again_is_another_run() -> None:
    back = by_hand(replace(running_in(2), phase="on"), "rollback", 1.0)
    assert canary_share(back, SETTINGS) == 0.0
    again = by_hand(back, "start", 5.0)
    assert (again.phase, again.stage, again.run, again.stage_since) == ("running", 0, 2, 5.0)
    assert step(again, counts(0, 0.0), 50.0, SETTINGS) == (again, ())  # evidence of the first run
