"""Same seed, same tokens: whatever a request's client sends as drafts, and whenever they arrive."""

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from prolepsis.core.client_draft import ClientDraft
from prolepsis.core.events import Event, Finished
from prolepsis.core.messages import ApplyPlan, OfferDraft
from prolepsis.core.plan import SpecPlan
from prolepsis.core.requests import SamplingParams, SpeculationChoice
from prolepsis.core.stats import RequestStats
from prolepsis.engine.drafting.proposers.expected_text import ClientProposer
from prolepsis.engine.drafting.proposers.suffix import SuffixProposer
from tests.exact.serving import serve, setup_of
from tests.fakes import VOCAB, build, outputs, request, submit, terminals

SEEDS = range(12)
PROMPT = [3, 1, 4, 1, 5]
OTHER = request("other", [9, 2, 6], SamplingParams(max_tokens=40, seed=77, ignore_eos=True))


def params(seed: int) -> SamplingParams:
    return SamplingParams(temperature=0.9, max_tokens=40, seed=seed, ignore_eos=seed % 2 == 0)


def offered(draw: random.Random, plain: Sequence[int]) -> ClientDraft:
    """Return a draft that is right, wrong from some token on, or garbage, before, at or behind the output's end."""
    position = draw.randrange(len(plain))
    right = list(plain[position : position + draw.randint(1, 12)])
    wrong_from = draw.choice([0, 1, 3, len(right)])
    drafted = [token if i < wrong_from else draw.randrange(VOCAB) for i, token in enumerate(right)]
    return ClientDraft(position, tuple(drafted))


def answered(seed: int, plan: SpecPlan, plain: Sequence[int], choice: SpeculationChoice) -> list[Event]:
    """Serve a request whose client sends drafts between steps, beside one that has no part in it."""
    draw = random.Random(seed)
    engine = build(setup_of(proposers=[SuffixProposer(native=False), ClientProposer()]))
    engine.send(ApplyPlan(plan))
    submit(engine, replace(request("r", PROMPT, params(seed)), speculation=choice), OTHER)
    events: list[Event] = []
    while engine.has_work:
        if draw.random() < 0.7:
            engine.send(OfferDraft("r", offered(draw, plain)))
        events += engine.step()
        engine.scheduler.check()
    return events


def stats_of(events: Sequence[Event]) -> RequestStats:
    ends = terminals(events)
    assert ends.keys() == {"r", "other"}
    assert all(isinstance(end, Finished) for end in ends.values())
    return ends["r"].stats


@pytest.mark.parametrize("plan", [SpecPlan(), SpecPlan(fixed_depth=4)], ids=["weighed", "fixed"])
def test_drafts_of_clients_change_no_output(plan: SpecPlan) -> None:
    accepted = drafted = 0
    for seed in SEEDS:
        plain = serve(setup_of(), SpecPlan(), request("r", PROMPT, params(seed)), OTHER)
        events = answered(seed, plan, plain["r", 0], SpeculationChoice())
        assert outputs(events) == plain, seed
        counts = stats_of(events).proposers.get("client")
        if counts is not None:
            accepted, drafted = accepted + counts.num_accepted, drafted + counts.num_draft_tokens
    assert 0 < accepted < drafted, "right and wrong drafts were verified"


@pytest.mark.parametrize(
    ("plan", "choice"),
    [
        (SpecPlan(), SpeculationChoice("off")),
        (SpecPlan(), SpeculationChoice(proposers=("suffix",))),
        (SpecPlan(num_speculative_tokens=0, reason="killed"), SpeculationChoice()),
        (SpecPlan(killed=frozenset({"proposer:client"})), SpeculationChoice()),
    ],
    ids=["off", "not allowed", "killed", "proposer killed"],
)
def test_where_they_may_not_draft_they_are_ignored(plan: SpecPlan, choice: SpeculationChoice) -> None:
    plain = serve(setup_of(), SpecPlan(), request("r", PROMPT, params(0)), OTHER)
    events = answered(0, plan, plain["r", 0], choice)
    assert outputs(events) == plain
    assert "client" not in stats_of(events).proposers
