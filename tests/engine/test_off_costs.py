"""What a step costs where speculation is off: the same calls as without proposers, counted and not timed."""

import gc
import sys
from collections.abc import Sequence
from dataclasses import replace
from types import FrameType

import pytest

from prolepsis.core.messages import ApplyPlan
from prolepsis.core.plan import SpecPlan
from prolepsis.core.requests import SamplingParams, SpecMode, SpeculationChoice
from prolepsis.engine.step import Engine
from tests.fake_proposer import Scripted
from tests.fakes import EngineSetup, build, draft_chain, request, submit

NUM_WARM, NUM_STEPS = 6, 10
AUTO: tuple[SpecMode, ...] = ("auto",) * 4
OFF: tuple[SpecMode, ...] = ("off",) * 4
SHADOW: tuple[SpecMode, ...] = ("shadow",) * 4


def _engine(modes: Sequence[SpecMode], *, proposes: bool = True, plan: SpecPlan | None = None) -> Engine:
    """Return an engine whose rows decode and have drafted, where they do."""
    scripted = Scripted(lambda sequence, limit: draft_chain(sequence, limit, wrong_from=1))
    engine = build(EngineSetup(proposers=[scripted] if proposes else []))
    if plan is not None:
        engine.send(ApplyPlan(plan))
    params = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)
    for number, mode in enumerate(modes):
        source = request(f"r{number}", (3, 4, 5 + number), params)
        submit(engine, replace(source, speculation=SpeculationChoice(mode)))
    for _ in range(NUM_WARM):
        engine.step()
    return engine


def _counted(modes: Sequence[SpecMode], *, proposes: bool = True, plan: SpecPlan | None = None) -> int:
    """Return how often the steps call a function of the package."""
    engine, num_calls = _engine(modes, proposes=proposes, plan=plan), 0

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal num_calls
        num_calls += event == "call" and frame.f_globals.get("__name__", "").startswith("prolepsis.")

    sys.setprofile(count)
    try:
        for _ in range(NUM_STEPS):
            engine.step()
    finally:
        sys.setprofile(None)
    return num_calls


def _kept(modes: Sequence[SpecMode], *, proposes: bool = True) -> int:
    """Return how many blocks of memory the steps leave allocated."""
    engine = _engine(modes, proposes=proposes)
    gc.collect()
    gc.disable()
    try:
        before = sys.getallocatedblocks()
        for _ in range(NUM_STEPS):
            engine.step()
        return sys.getallocatedblocks() - before
    finally:
        gc.enable()


@pytest.mark.parametrize("modes", [AUTO, SHADOW])
def test_a_plan_that_is_off_takes_the_calls_of_an_engine_without_proposers(modes: Sequence[SpecMode]) -> None:
    assert _counted(modes, plan=SpecPlan(num_speculative_tokens=0)) == _counted(modes, proposes=False)


def test_requests_that_are_off_take_the_calls_of_an_engine_without_proposers() -> None:
    off = _counted(OFF)
    assert off == _counted(OFF, proposes=False)
    assert off < _counted(AUTO, proposes=False), "fewer even than where it is first asked whether there are proposers"


def test_a_request_that_is_off_takes_few_calls_beside_others_that_draft() -> None:
    of_plain_row = _counted(AUTO, proposes=False) - _counted(AUTO[1:], proposes=False)
    of_row_that_is_off = _counted((*AUTO[1:], "off")) - _counted(AUTO[1:])
    assert of_row_that_is_off <= of_plain_row + 15 * NUM_STEPS


def test_steps_that_are_off_keep_no_more_objects_than_those_of_an_engine_without_proposers() -> None:
    _kept(OFF)  # what is made once
    assert min(_kept(OFF) for _ in range(3)) <= min(_kept(OFF, proposes=False) for _ in range(3)) + 2 * NUM_STEPS
