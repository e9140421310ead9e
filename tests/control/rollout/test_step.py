"""The rollout as a pure function, with a fake clock and recorded counters."""

from dataclasses import replace

import pytest

from prolepsis.control.rollout.machine import Phase, RolloutEvent, canary_share, step
from tests.control.rollout.rollout import NEW, SETTINGS, STAGES, by_hand, counts, running_in


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
    assert event.verdict is not None
    assert event.verdict.guardrails[0].estimate == pytest.approx(0.3)


def test_a_pass_waits_for_the_least_time_of_the_stage() -> None:
    assert step(running_in(1), counts(1, 0.0), 9.9, SETTINGS) == (running_in(1), ())
    assert step(running_in(1), counts(1, 0.0), 10.0, SETTINGS)[0].stage == 2


def test_an_inconclusive_stage_waits_and_is_then_held_or_rolled_back() -> None:
    little = counts(1, 0.0, num_canary=25)
    assert step(running_in(1), little, 99.0, SETTINGS) == (running_in(1), ())
    held, [event] = step(running_in(1), little, 100.0, SETTINGS)
    assert (held.phase, event.kind, event.reason) == ("held", "held", "no verdict in time")
    assert canary_share(held, SETTINGS) == 0.05
    rolled, [event] = step(running_in(1), little, 100.0, replace(SETTINGS, on_inconclusive="rollback"))
    assert (rolled.phase, event.kind, event.reason) == ("rolled_back", "rolled_back", "no verdict in time")


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
