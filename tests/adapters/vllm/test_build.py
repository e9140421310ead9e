"""An engine whose passes run elsewhere emits what ours emits, and obeys what ours obeys."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from prolepsis.core.continuation import Continuation
from prolepsis.core.errors import InvalidParameter
from prolepsis.core.events import Aborted, Difference, Event, Failed, Finished, Tokens
from prolepsis.core.messages import Abort, ApplyPlan, StopRun
from prolepsis.core.plan import PANIC_PLAN
from prolepsis.core.requests import GenerateRequest, SamplingParams, SpeculationChoice
from prolepsis.engine.sampling.sampler import Sampler
from prolepsis.engine.step import Engine
from prolepsis.engine.verification import Verification
from tests import fakes
from tests.adapters.vllm.table_plane import TablePlane, build, config
from tests.fakes import EOS, VOCAB, EngineSetup, drain, outputs, request, run, submit, terminals

REPEATED = [3, 4, 5, 6, 7, 8, 9, 10] * 4
ON = SpeculationChoice("always")
LONG = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)


def ours() -> Engine:
    """Return an engine of ours over the same table, with the real sampler."""
    return fakes.build(EngineSetup(verifier=Verification(Sampler(VOCAB, (EOS,)), max_model_len=256)))


@pytest.mark.parametrize("params", [SamplingParams(prompt_logprobs=1), SamplingParams(max_tokens=0)])
def test_prompts_are_not_scored(params: SamplingParams) -> None:
    with pytest.raises(InvalidParameter, match="allowed: neither by this engine"):
        build(TablePlane()).validate(request("a", [1, 2], params))


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.0, max_tokens=40),
        SamplingParams(temperature=0.9, max_tokens=40, seed=5),
        SamplingParams(temperature=1.0, max_tokens=40, seed=6, top_k=5, top_p=0.9, min_p=0.05),
        SamplingParams(temperature=0.7, max_tokens=40, seed=7, repetition_penalty=1.3, presence_penalty=0.5),
        SamplingParams(temperature=1.0, max_tokens=40, seed=8, logit_bias=((4, 3.0), (5, -100.0)), min_tokens=10),
        SamplingParams(temperature=1.0, max_tokens=40, seed=9, logprobs=3, stop=("ab", "q")),
        SamplingParams(temperature=1.0, max_tokens=40, seed=10, stop_token_ids=(3,), ignore_eos=True),
    ],
)
def test_emits_what_our_engine_emits(params: SamplingParams) -> None:
    asked = [replace(request(name, REPEATED[i:], params, n=2), speculation=ON) for i, name in enumerate("abc")]
    expected, found = run(ours(), *asked), run(build(TablePlane()), *asked)
    assert outputs(found) == outputs(expected)
    assert _logprobs(found) == _logprobs(expected)
    assert _ends(found) == _ends(expected)
    assert all(isinstance(event, Finished) for event in terminals(found).values())


def _logprobs(events: list[Event]) -> dict[tuple[str, int], list[object]]:
    found: dict[tuple[str, int], list[object]] = {}
    for event in events:
        if isinstance(event, Tokens):
            found.setdefault((event.request_id, event.index), []).extend(event.logprobs or ())
    return found


def _ends(events: list[Event]) -> set[tuple[object, ...]]:
    tokens = [event for event in events if isinstance(event, Tokens) and event.finish_reason]
    return {(event.request_id, event.index, event.finish_reason, event.stop_reason) for event in tokens}


def test_drafts_are_verified_and_counted() -> None:
    plane = TablePlane()
    events = run(build(plane), replace(request("a", REPEATED, LONG), speculation=ON))
    stats = terminals(events)["a"].stats
    assert stats.mode.mode == "on"
    assert stats.num_draft_tokens == sum(len(draft) for _, draft in plane.verified) > 0
    assert sum(drafted for counts in stats.proposers.values() for drafted, _ in counts.per_position) == (
        stats.num_draft_tokens
    )
    assert stats.num_steps + stats.num_accepted == stats.num_output_tokens == 60


def test_a_request_in_shadow_drafts_and_verifies_nothing() -> None:
    plane = TablePlane()
    events = run(
        build(plane, config(shadow_cost=1.0)),
        replace(request("a", REPEATED, LONG), speculation=SpeculationChoice("shadow")),
    )
    stats = terminals(events)["a"].stats
    assert not plane.verified
    assert stats.mode.mode == "shadow"
    assert sum(counts.num_draft_tokens for counts in stats.shadow.values()) > 0


def test_depth_and_proposer_are_those_of_the_request() -> None:
    plane = TablePlane()
    choice = SpeculationChoice("always", num_speculative_tokens=2, proposers=("prompt_lookup",))
    stats = terminals(run(build(plane), replace(request("a", REPEATED, LONG), speculation=choice)))["a"].stats
    assert set(stats.proposers) == {"prompt_lookup"}
    assert {len(draft) for _, draft in plane.verified} <= {1, 2}


@pytest.mark.parametrize("message", [ApplyPlan(PANIC_PLAN), StopRun("run")])
def test_a_request_in_flight_obeys_at_its_next_step(message: ApplyPlan | StopRun) -> None:
    plane = TablePlane()
    engine = build(plane)
    submit(engine, replace(request("a", REPEATED, LONG), speculation=replace(ON, rollout_run="run")))
    while not plane.verified:
        engine.step()
    before = len(plane.verified)
    engine.send(message)
    drain(engine)
    assert len(plane.verified) == before


def test_an_aborted_request_leaves_the_data_plane() -> None:
    plane = TablePlane()
    engine = build(plane)
    submit(engine, request("a", REPEATED, LONG), request("b", REPEATED, LONG))
    engine.step()
    engine.send(Abort("a"))
    events = engine.step()
    assert isinstance(terminals(events)["a"], Aborted)
    assert set(plane.held) == {"b/0"}


def test_a_failed_pass_costs_its_requests_and_no_others() -> None:
    plane = TablePlane(fail_next=1)
    engine = build(plane)
    assert isinstance(terminals(run(engine, request("a", REPEATED)))["a"], Failed)
    again = run(engine, request("b", REPEATED))
    assert plane.num_resets == 1
    assert outputs(again) == outputs(run(ours(), request("b", REPEATED)))


def test_tokens_of_the_data_planes_prefix_cache_are_counted() -> None:
    stats = terminals(run(build(TablePlane(num_cached=16)), request("a", REPEATED)))["a"].stats
    assert stats.num_cached_tokens == 16
    assert terminals(run(build(TablePlane()), request("a", REPEATED)))["a"].stats.num_cached_tokens == 0


def test_a_draft_that_has_no_room_is_cut() -> None:
    plane = TablePlane(most_drafted=1)
    stats = terminals(run(build(plane), replace(request("a", REPEATED, LONG), speculation=ON)))["a"].stats
    assert stats.num_draft_tokens == len(plane.verified) > 0
    none = TablePlane(most_drafted=0)
    stats = terminals(run(build(none), replace(request("a", REPEATED, LONG), speculation=ON)))["a"].stats
    assert stats.num_draft_tokens == 0
    assert stats.plain_steps["no_capacity"] > 0


def test_a_continued_request_goes_on_where_it_was() -> None:
    whole = request("a", REPEATED, SamplingParams(temperature=1.0, seed=3, max_tokens=30, ignore_eos=True))
    engine = build(TablePlane())
    [tokens] = outputs(run(engine, whole)).values()
    rest = replace(whole, continue_from=Continuation(emitted=((*tokens[:11],),), group=engine.info.exact_group))
    [more] = outputs(run(build(TablePlane()), rest)).values()
    assert tokens[:11] + more == tokens


def test_a_replay_finds_the_first_difference() -> None:
    source = request("a", REPEATED, SamplingParams(temperature=1.0, seed=3, max_tokens=12, ignore_eos=True))
    [tokens] = outputs(run(build(TablePlane()), source)).values()
    wrong = [*tokens[:5], (tokens[5] + 1) % VOCAB, *tokens[6:]]
    assert [d.position for d in _differences(replace(source, emitted=(tuple(wrong),)))] == [5]
    assert not list(_differences(replace(source, emitted=(tuple(tokens),))))


def _differences(source: GenerateRequest) -> Iterator[Difference]:
    for event in run(build(TablePlane()), source):
        if isinstance(event, Tokens) and event.difference is not None:
            yield event.difference


def test_a_replay_reuses_nothing_that_others_computed() -> None:
    plane = TablePlane()
    source = replace(request("a", REPEATED), cache_salt="tenant")
    engine = build(plane)
    [tokens] = outputs(run(engine, source)).values()
    run(engine, replace(source, request_id="again", emitted=(tuple(tokens),)))
    assert plane.salts["a/0"] == "tenant"
    assert plane.salts["again/0"] not in ("", "tenant")


def test_more_requests_than_there_is_room_for_wait_their_turn() -> None:
    plane = TablePlane()
    events = run(build(plane, config(max_requests=2)), *(request(str(i), REPEATED[i:]) for i in range(6)))
    assert len(terminals(events)) == 6
    assert outputs(events) == outputs(run(ours(), *(request(str(i), REPEATED[i:]) for i in range(6))))
