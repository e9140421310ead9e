"""Requests in shadow: decoded plainly, with the figures that speculation would have had."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from prolepsis.core.events import Event, Finished, Tokens
from prolepsis.core.messages import Abort, ApplyPlan
from prolepsis.core.plan import SpecPlan
from prolepsis.core.requests import GenerateRequest, SamplingParams, SpeculationChoice
from prolepsis.core.stats import EffectiveMode, RequestStats
from prolepsis.engine.drafting.draft import Draft, chain
from prolepsis.engine.drafting.proposer import SequenceView
from prolepsis.engine.speculation import Speculation
from prolepsis.engine.step import Engine
from tests.fake_proposer import Script, Scripted
from tests.fakes import EngineSetup, build, draft_chain, draft_tree, drain, outputs, request, run, submit, terminals

PROMPT = [1, 2, 3]
PARAMS = {
    "length": SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True),
    "sampled": SamplingParams(temperature=1.0, seed=3, max_tokens=33, ignore_eos=True),
    "end": SamplingParams(temperature=0.0, max_tokens=200),
    "text": SamplingParams(temperature=0.0, max_tokens=60, stop=("ab", "f"), ignore_eos=True),
}
SCRIPTS: dict[str, Script] = {
    "right": lambda sequence, limit: draft_chain(sequence, limit, wrong_from=99),
    "wrong": lambda sequence, limit: draft_chain(sequence, limit, wrong_from=0),
    "partly": lambda sequence, limit: draft_chain(sequence, limit, wrong_from=3),
    "tree": draft_tree,
    "at times": lambda sequence, limit: (
        draft_chain(sequence, limit, wrong_from=2) if len(sequence.tokens) % 3 else None
    ),
}


def engine_with(script: Script, plan: SpecPlan, **setup: int) -> Engine:
    engine = build(EngineSetup(proposers=[Scripted(script)], **setup))  # type: ignore[arg-type]
    engine.send(ApplyPlan(plan))
    return engine


def shadow(request_id: str, params: SamplingParams, *, n: int = 1) -> GenerateRequest:
    return replace(request(request_id, PROMPT, params, n=n), speculation=SpeculationChoice("shadow"))


def stats_of(events: Sequence[Event], request_id: str = "a") -> RequestStats:
    return terminals(events)[request_id].stats


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("params", PARAMS)
def test_figures_are_those_of_verification_and_tokens_those_of_plain_decoding(params: str, script: str) -> None:
    plain = outputs(run(build(EngineSetup()), request("a", PROMPT, PARAMS[params])))
    plan = SpecPlan(version=5, fixed_depth=6)
    verified = stats_of(run(engine_with(SCRIPTS[script], plan), request("a", PROMPT, PARAMS[params])))
    assert verified.proposers["scripted"].num_drafts > 1
    engine = engine_with(SCRIPTS[script], plan)
    events = run(engine, shadow("a", PARAMS[params]))
    compared = stats_of(events)
    assert outputs(events) == plain
    uncut = {name: replace(counts, num_cut=0) for name, counts in verified.proposers.items()}
    assert compared.shadow == uncut, "what is not verified is not cut off after its verification"
    assert compared.proposers == {}
    assert compared.num_steps == compared.num_output_tokens
    assert compared.mode == EffectiveMode("shadow", "compared", 5)
    assert engine.speculation.proposers.counts["scripted"].num_drafts == 0


def test_a_row_in_shadow_is_one_row_of_the_pass() -> None:
    engine = engine_with(SCRIPTS["right"], SpecPlan(fixed_depth=6))
    submit(engine, shadow("a", PARAMS["length"]), shadow("b", PARAMS["sampled"]))
    engine.step()
    while engine.scheduler.requests:
        num_running = len(engine.scheduler.running)
        engine.step()
        assert engine.timings.last[-1].num_tokens == num_running


@pytest.mark.parametrize("depth", [6, None])
def test_neighbours_draft_as_they_would_beside_plain_rows(depth: int | None) -> None:
    others = [request(str(i), [i + 1] * 9, PARAMS["sampled"]) for i in range(5)]

    def passes(choice: SpeculationChoice) -> tuple[list[tuple[Tokens, ...]], list[int]]:
        engine = engine_with(SCRIPTS["partly"], SpecPlan(fixed_depth=depth))
        submit(engine, replace(request("a", PROMPT, PARAMS["length"]), speculation=choice), *others)
        steps: list[tuple[Tokens, ...]] = []
        rows: list[int] = []
        while engine.scheduler.requests or not steps:
            steps.append(tuple(event for event in engine.step() if isinstance(event, Tokens)))
            rows.append(engine.timings.last[-1].num_tokens)
        return steps, rows

    if depth is None:  # what shadow drafts teach of acceptance may move later windows; the first drafts are the same
        in_shadow, plain = passes(SpeculationChoice("shadow")), passes(SpeculationChoice("off"))
        assert in_shadow[1][:2] == plain[1][:2]
    else:
        assert passes(SpeculationChoice("shadow")) == passes(SpeculationChoice("off"))


def test_sequences_are_compared_each_by_itself_through_preemptions() -> None:
    engine = engine_with(SCRIPTS["partly"], SpecPlan(fixed_depth=4), num_pages=7, max_model_len=100)
    sources = [shadow(f"{i}", SamplingParams(seed=i, max_tokens=80, ignore_eos=True), n=2) for i in range(3)]
    events = run(engine, *sources)
    assert sum(stats_of(events, source.request_id).num_preemptions for source in sources) > 0
    for source in sources:
        *right, wrong = stats_of(events, source.request_id).shadow["scripted"].per_position
        assert len(right) == 3
        assert all(drafted == accepted > 0 for drafted, accepted in right)
        assert wrong[0] > wrong[1] == 0


def test_undecided_drafts_of_aborted_requests_are_not_counted() -> None:
    engine = engine_with(SCRIPTS["right"], SpecPlan(fixed_depth=6))
    submit(engine, shadow("a", PARAMS["length"]))
    events = engine.step() + engine.step() + engine.step()
    engine.send(Abort("a"))
    assert stats_of(events + drain(engine)).shadow == {}


def test_ceiling_and_proposer_of_the_request_hold() -> None:
    source = shadow("a", PARAMS["length"])
    narrow = replace(source, speculation=SpeculationChoice("shadow", num_speculative_tokens=2))
    stats = stats_of(run(engine_with(SCRIPTS["right"], SpecPlan(fixed_depth=6)), narrow))
    assert len(stats.shadow["scripted"].per_position) == 2
    other = replace(source, speculation=SpeculationChoice("shadow", proposers=("other",)))
    stats = stats_of(run(engine_with(SCRIPTS["right"], SpecPlan(fixed_depth=6)), other))
    assert (stats.shadow, stats.mode.mode, stats.mode.reason) == ({}, "off", "no_draft")


def test_the_window_decides_over_shadow_drafts_too() -> None:
    engine = engine_with(SCRIPTS["wrong"], SpecPlan())
    counts = stats_of(run(engine, shadow("a", replace(PARAMS["length"], max_tokens=200)))).shadow["scripted"]
    assert 0 < counts.num_drafts < 100, "hopeless drafts are declined"
    engine = engine_with(SCRIPTS["right"], SpecPlan())
    counts = stats_of(run(engine, shadow("a", replace(PARAMS["length"], max_tokens=200)))).shadow["scripted"]
    assert counts.num_accepted > 5 * counts.num_drafts, "good drafts are long"


def test_a_plan_without_speculation_has_no_shadow() -> None:
    events = run(engine_with(SCRIPTS["right"], SpecPlan(num_speculative_tokens=0)), shadow("a", PARAMS["length"]))
    assert stats_of(events).mode == EffectiveMode("off", "plan_off", 0)


def test_a_proposer_that_raises_or_lies_in_shadow_is_contained() -> None:
    def boom(sequence: SequenceView, limit: int) -> Draft | None:
        raise ValueError("no idea")

    plain = outputs(run(build(EngineSetup()), request("a", PROMPT, PARAMS["length"])))
    for script in (boom, lambda sequence, limit: chain((10**6,), "scripted")):
        engine = engine_with(script, SpecPlan())
        events = run(engine, shadow("a", PARAMS["length"]))
        assert outputs(events) == plain
        assert isinstance(terminals(events)["a"], Finished)
        assert engine.speculation.proposers.failures["scripted"] > 0
        assert stats_of(events).mode.reason == "backoff"


def test_requests_beyond_their_share_of_the_time_are_put_off_whole_and_decoded_plainly() -> None:
    engine = engine_with(SCRIPTS["wrong"], SpecPlan(fixed_depth=2))
    ticks = iter(range(10**6))
    engine.speculation = Speculation(
        engine.speculation.proposers,
        max_step_tokens=64,
        max_model_len=256,
        shadow_cost=0.5,
        clock=lambda: float(next(ticks)),  # each time one second: far more than passes of a table take
    )
    plain = outputs(run(build(EngineSetup()), request("first", PROMPT, PARAMS["length"])))["first", 0]
    run(engine, request("a", PROMPT, PARAMS["end"]))  # passes that give credit
    events = run(engine, shadow("first", PARAMS["length"]))
    assert stats_of(events, "first").plain_steps.get("shadow_budget") is None
    events += run(engine, shadow("later", PARAMS["length"], n=2), shadow("last", PARAMS["length"]))
    for name, num_sequences in {"later": 2, "last": 1}.items():
        stats = stats_of(events, name)
        assert stats.shadow == {}
        assert stats.mode.reason == "shadow_budget"
        assert stats.plain_steps == {"shadow_budget": 39 * num_sequences}
    assert outputs(events)["first", 0] == outputs(events)["last", 0] == plain
    assert engine.speculation.proposers.counts["scripted"].num_drafts > 0, "others draft all the same"
