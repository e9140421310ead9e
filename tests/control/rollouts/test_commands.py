"""What people do by hand, and when it means something."""

from dataclasses import replace
from itertools import product
from typing import get_args

import pytest

from prolepsis.control.rollouts.commands import Command, command
from prolepsis.control.rollouts.state import Phase, canary_share
from prolepsis.control.rollouts.step import step
from prolepsis.core.errors import InvalidParameter
from tests.control.rollouts.rollout import SETTINGS, by_hand, counts, running_in

MEANINGFUL = {
    "start": {"off"},
    "approve": {"gate"},
    "pause": {"running", "gate"},
    "resume": {"paused", "held"},
    "abort": {"off", "running", "gate", "held", "paused", "on"},
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


def test_a_pause_stops_the_stages_clock() -> None:
    paused = by_hand(running_in(1), "pause", 40.0)
    assert canary_share(paused, SETTINGS) == 0.05
    assert step(paused, counts(1, 0.0), 1000.0, SETTINGS) == (paused, ())
    resumed = by_hand(paused, "resume", 1040.0)
    assert (resumed.phase, resumed.stage_since) == ("running", 1000.0)
    assert step(resumed, None, 1099.0, SETTINGS)[0].phase == "running"
    assert step(resumed, None, 1100.0, SETTINGS)[0].phase == "held"


def test_a_gate_that_was_paused_is_a_gate_again() -> None:
    gate = replace(running_in(2), phase="gate")
    assert by_hand(by_hand(gate, "pause", 1.0), "resume", 2.0).phase == "gate"


def test_what_was_held_gets_the_stages_time_anew() -> None:
    held = replace(running_in(1), phase="held")
    resumed = by_hand(held, "resume", 500.0)
    assert step(resumed, None, 599.0, SETTINGS)[0].phase == "running"
    assert step(resumed, counts(1, 0.0), 510.0, SETTINGS)[0].stage == 2


def test_an_approval_is_told_before_what_it_leads_to() -> None:
    after, events = command(replace(running_in(2), phase="gate"), "approve", 9.0, SETTINGS, "somebody")
    assert (after.phase, [e.kind for e in events]) == ("on", ["approved", "completed"])


def test_aborting_takes_everything_back() -> None:
    assert canary_share(by_hand(replace(running_in(2), phase="on"), "abort", 1.0), SETTINGS) == 0.0
