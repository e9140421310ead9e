"""A run that is rolled back stops drafting with the next step; tokens stay those of plain decoding."""

from dataclasses import replace

import pytest

from prolepsis.core.messages import ApplyPlan, StopRun
from prolepsis.core.plan import SpecPlan
from prolepsis.core.requests import GenerateRequest, SamplingParams, SpeculationChoice
from prolepsis.engine.step import Engine
from tests.fake_proposer import Scripted
from tests.fakes import EngineSetup, build, draft_chain, drain, outputs, request, run, submit, terminals

PARAMS = {
    "greedy": SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True),
    "sampled": SamplingParams(temperature=1.0, seed=3, max_tokens=40, ignore_eos=True),
}


def engine_with(wrong_from: int) -> Engine:
    engine = build(
        EngineSetup(proposers=[Scripted(lambda sequence, limit: draft_chain(sequence, limit, wrong_from=wrong_from))])
    )
    engine.send(ApplyPlan(SpecPlan(fixed_depth=4)))
    return engine


def of_run(request_id: str, params: SamplingParams, name: str, *, shadow: bool = False) -> GenerateRequest:
    choice = SpeculationChoice("shadow" if shadow else "auto", rollout_run=name)
    return replace(request(request_id, [1, 2, 3], params), speculation=choice)


@pytest.mark.parametrize("params", PARAMS)
@pytest.mark.parametrize("wrong_from", [0, 2, 99])
@pytest.mark.parametrize("shadow", [False, True])
def test_those_in_flight_fall_back_between_two_steps(params: str, wrong_from: int, shadow: bool) -> None:
    plain = outputs(run(build(EngineSetup()), *(request(i, [1, 2, 3], PARAMS[params]) for i in "ab")))
    engine = engine_with(wrong_from)
    submit(
        engine,
        of_run("a", PARAMS[params], "code#1", shadow=shadow),
        of_run("b", PARAMS[params], "chat#1", shadow=shadow),
    )
    events = [event for _ in range(8) for event in engine.step()]
    before = _num_drafts(engine, "a")
    assert before > 0
    engine.send(StopRun("code#1"))
    events += drain(engine)
    assert outputs(events) == plain
    ended = terminals(events)
    after, other = ((s.proposers or s.shadow)["scripted"].num_drafts for s in (ended["a"].stats, ended["b"].stats))
    assert after <= before + shadow  # what is compared already is followed to its end
    assert other > after


def _num_drafts(engine: Engine, request_id: str) -> int:
    stats = engine.scheduler.requests[request_id].stats
    return sum(counts.num_drafts for counts in (*stats.proposers.values(), *stats.shadow.values()))


@pytest.mark.parametrize("later", [SpecPlan(fixed_depth=4), SpecPlan(fixed_depth=4, stopped=frozenset({"x"}))])
def test_it_stays_stopped_over_later_plans_and_for_those_that_still_come(later: SpecPlan) -> None:
    engine = engine_with(99)
    engine.send(StopRun("code#1"))
    engine.send(ApplyPlan(later))
    events = run(engine, of_run("a", PARAMS["greedy"], "code#1"), of_run("b", PARAMS["greedy"], "code#2"))
    ended = terminals(events)
    assert (ended["a"].stats.mode.mode, ended["a"].stats.mode.reason) == ("off", "rolled_back")
    assert ended["b"].stats.mode.mode == "on"


def test_requests_of_no_run_are_never_stopped() -> None:
    engine = engine_with(99)
    engine.send(StopRun("code#1"))
    assert terminals(run(engine, request("a", [1, 2], PARAMS["greedy"])))["a"].stats.mode.mode == "on"
