"""What people do by hand, and when it means something."""

from dataclasses import replace
from itertools import product
from typing import get_args

import pytest

from prolepsis.control.rollout.machine import Command, Phase, canary_share, command, step
from prolepsis.core.errors import InvalidParameter
from tests.control.rollout.rollout import SETTINGS, by_hand, counts, running_in

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


def test_a_resumed_stage_that_was_held_without_a_verdict_starts_its_time_again() -> None:
    held = replace(running_in(1), phase="held")
    resumed = by_hand(held, "resume", 500.0)
    assert step(resumed, None, 599.0, SETTINGS)[0].phase == "running"
    assert step(resumed, counts(1, 0.0), 510.0, SETTINGS)[0].stage == 2


@pytest.mark.parametrize("phase", ["running", "gate", "held"])
def test_promoting_by_hand_asks_for_no_verdict(phase: Phase) -> None:
    after, [event] = command(replace(running_in(1), phase=phase, held_at=1.0), "promote", 9.0, SETTINGS, "somebody")
    assert (after.phase, after.stage, after.stage_since, after.held_at) == ("running", 2, 9.0, None)
    assert (event.kind, event.stage, event.verdict) == ("promoted", "canary 5%", None)
    on, [event] = command(replace(running_in(2), phase=phase), "promote", 9.0, SETTINGS, "somebody")
    assert (on.phase, event.kind) == ("on", "completed")


def test_rolling_back_takes_everything_back_and_starting_again_is_another_run() -> None:
    back = by_hand(replace(running_in(2), phase="on"), "rollback", 1.0)
    assert canary_share(back, SETTINGS) == 0.0
    again = by_hand(back, "start", 5.0)
    assert (again.phase, again.stage, again.run, again.stage_since) == ("running", 0, 2, 5.0)
    assert step(again, counts(0, 0.0), 50.0, SETTINGS) == (again, ())  # evidence of the first run
