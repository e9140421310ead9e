"""Rounds of speculation as a request's stats tell them."""

from dataclasses import replace
from itertools import pairwise

import pytest

from prolepsis.core.config import DRAFT_HEAD
from prolepsis.core.requests import GenerateRequest, SamplingParams, SpeculationChoice
from prolepsis.core.rounds import MAX_ROUNDS, Round
from prolepsis.core.stats import RequestStats
from prolepsis.engine.drafting.draft import Draft
from prolepsis.engine.drafting.proposer import SequenceView
from prolepsis.engine.step import Engine
from tests.fake_proposer import Script, Scripted
from tests.fakes import EngineSetup, build, draft_chain, draft_tree, request, run, terminals

PROMPT = (3, 4, 5)


def engine_of(script: Script) -> Engine:
    engine = build(EngineSetup(proposers=[Scripted(lambda *asked: renamed(script(*asked)), DRAFT_HEAD)]))
    engine.info = replace(engine.info, draft_head="little@3")
    return engine


def renamed(draft: Draft | None) -> Draft | None:
    return replace(draft, proposer=DRAFT_HEAD) if draft else None


def asked(num_tokens: int, *, keeps: bool = True) -> GenerateRequest:
    params = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
    choice = SpeculationChoice("always", num_speculative_tokens=6)
    return replace(request("a", PROMPT, params), speculation=choice, keeps_rounds=keeps)


def stats_of(engine: Engine, source: GenerateRequest) -> RequestStats:
    return terminals(run(engine, source))["a"].stats


def one_wrong(sequence: SequenceView, limit: int) -> Draft:
    return draft_chain(sequence, min(limit, 3), wrong_from=2)


def test_rounds_say_what_was_drafted_and_what_became_of_it() -> None:
    engine = engine_of(one_wrong)
    stats = stats_of(engine, asked(20))
    counts = stats.proposers[DRAFT_HEAD]
    assert len(stats.rounds) == counts.num_drafts
    assert sum(one.num_draft_tokens for one in stats.rounds) == counts.num_draft_tokens
    assert sum(one.num_accepted for one in stats.rounds) == counts.num_accepted
    assert {(one.proposer, one.version, one.sample) for one in stats.rounds} == {(DRAFT_HEAD, "little@3", 0)}
    first, second = stats.rounds[:2]
    assert (first.position, first.num_emitted, second.position) == (1, 3, 4)
    assert first.outcome == "partly_accepted"
    assert all(a.position + a.num_emitted == b.position for a, b in pairwise(stats.rounds))


def test_rounds_follow_one_another_within_the_request() -> None:
    stats = stats_of(engine_of(one_wrong), asked(20))
    assert stats.arrival > 0.0
    assert stats.first_token_s is not None
    ends = [stats.first_token_s, *(one.ended for one in stats.rounds)]
    for before, one in zip(ends, stats.rounds, strict=False):
        assert before <= one.began
        assert one.propose_s + one.forward_s + one.verify_s <= one.ended - one.began
    assert stats.rounds[-1].ended <= stats.total_s


def test_the_longest_path_of_a_tree_counts_as_drafted() -> None:
    stats = stats_of(engine_of(draft_tree), asked(16))
    assert {(one.num_nodes, one.num_draft_tokens) for one in stats.rounds} == {(6, 3)}


def test_further_rounds_are_in_the_sums_only() -> None:
    engine = engine_of(lambda sequence, limit: draft_chain(sequence, min(limit, 1), wrong_from=0))
    stats = stats_of(engine, asked(MAX_ROUNDS + 20))
    assert len(stats.rounds) == MAX_ROUNDS
    assert stats.num_drafts > MAX_ROUNDS
    assert {one.outcome for one in stats.rounds} == {"rejected"}


def test_rounds_are_kept_only_on_request() -> None:
    assert stats_of(engine_of(one_wrong), asked(20, keeps=False)).rounds == []


@pytest.mark.parametrize(
    ("drafted", "accepted", "outcome"), [(3, 3, "accepted"), (3, 1, "partly_accepted"), (3, 0, "rejected")]
)
def test_outcomes(drafted: int, accepted: int, outcome: str) -> None:
    one = Round(0.0, 1.0, 0.1, 0.5, 0.1, 0, 1, "suffix", "", drafted, drafted, accepted, accepted + 1)
    assert one.outcome == outcome
