"""Drafts and sampling inside a worker of another server, over `table_logits`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from prolepsis.adapters.vllm.chains import ChainProposer, chain_of
from prolepsis.adapters.vllm.served import ServedRequests, is_ours
from prolepsis.engine.drafting.draft import Draft, chain
from prolepsis.engine.drafting.payback import Payback
from prolepsis.engine.drafting.proposer import Proposer, SequenceView
from prolepsis.engine.drafting.proposers.prompt_lookup import PromptLookupProposer
from prolepsis.engine.drafting.proposers.suffix import SuffixProposer
from prolepsis.engine.drafting.worth import StepCost
from prolepsis.engine.sampling.sampler import Sampler
from tests.engine.drafting.sequences import FakeSequence
from tests.fake_proposer import Scripted
from tests.fakes import EOS, VOCAB, draft_chain, table_logits

REPEATED = [3, 4, 5, 6, 7, 8, 9, 10] * 4


def given(extra: dict[str, Any] | None = None, **settings: Any) -> SimpleNamespace:
    """Return sampling parameters with vLLM's names and defaults."""
    defaults: dict[str, Any] = {
        "temperature": 0.0,
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "min_tokens": 0,
        "stop_token_ids": [],
        "ignore_eos": True,
        "seed": 5,
        "logprobs": None,
        "bad_words": [],
        "allowed_token_ids": None,
        "logit_bias": None,
        "extra_args": extra,
    }
    return SimpleNamespace(**defaults | settings)


@dataclass
class State:
    sampling_params: Any
    prompt_token_ids: list[int] | None = field(default_factory=lambda: list(REPEATED))
    output_token_ids: list[int] = field(default_factory=list)


class Server:
    """The loop of a server around one worker: sample, append, ask for drafts."""

    def __init__(
        self, proposers: Sequence[Proposer] | None = None, depth: int = 5, seconds_per_draft_token: float = 0.0
    ) -> None:
        self.requests: dict[str, State] = {}
        self.now = 0.0
        self.seconds_per_draft_token = seconds_per_draft_token
        chains = proposers or [ChainProposer(PromptLookupProposer(max_match=3, min_match=1))]
        self.served = ServedRequests(
            lambda: self.requests, chains, Sampler(VOCAB, (EOS,)), depth, clock=lambda: self.now
        )
        self.drafts: dict[str, list[int]] = {}
        self.num_drafted = 0

    def step(self) -> None:
        keys = list(self.requests)
        drafts = [self.drafts.get(key, []) for key in keys]
        logits: list[list[float]] = []
        for key, draft in zip(keys, drafts, strict=True):
            state = self.requests[key]
            context = [*(state.prompt_token_ids or ()), *state.output_token_ids]
            logits += [table_logits([*context, *draft[:size]]) for size in range(len(draft) + 1)]
        self.now += 0.1 + self.seconds_per_draft_token * sum(map(len, drafts))
        for key, tokens in zip(keys, self.served.sample(keys, drafts, torch.tensor(logits)), strict=True):
            self.requests[key].output_token_ids += tokens
        self.drafts = dict(zip(keys, self.served.propose(keys, [True] * len(keys)), strict=True))
        self.num_drafted += sum(map(len, self.drafts.values()))

    def run(self, *params: Any, num_tokens: int = 40) -> list[list[int]]:
        """Return the output of one request after the other has them all."""
        self.requests = {f"r{i}": State(one) for i, one in enumerate(params)}
        states = list(self.requests.values())
        while any(len(state.output_token_ids) < num_tokens for state in states):
            self.step()
        self.requests = {}
        self.served.propose([], [])
        return [state.output_token_ids[:num_tokens] for state in states]


OFF = {"prolepsis_mode": "off"}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"temperature": 0.9},
        {"temperature": 1.0, "seed": None, "top_k": 8, "top_p": 0.9},
        {"temperature": 0.8, "repetition_penalty": 1.2, "presence_penalty": 0.4},
    ],
)
def test_drafts_change_no_token(settings: dict[str, Any]) -> None:
    server, plain = Server(), Server()
    assert server.run(given(None, **settings)) == plain.run(given(OFF, **settings))
    assert server.num_drafted > 0
    assert plain.num_drafted == 0


def test_each_request_of_a_batch_has_its_own_mode() -> None:
    plain = Server().run(given(OFF), given(OFF))
    server = Server()
    assert server.run(given(OFF), given()) == plain
    assert set(server.served.counts) <= {"suffix", "prompt_lookup"}


def test_depth_and_proposer_are_those_of_the_request() -> None:
    server = Server()
    server.run(given({"prolepsis_depth": 2, "prolepsis_proposer": "prompt_lookup"}))
    [(name, counts)] = server.served.counts.items()
    assert name == "prompt_lookup"
    assert len(counts.per_position) <= 2
    none = Server()
    none.run(given({"prolepsis_depth": 0}))
    assert none.num_drafted == 0


def test_a_request_in_shadow_is_compared_and_not_verified() -> None:
    server = Server()
    server.run(given({"prolepsis_mode": "shadow"}))
    assert server.num_drafted == 0
    assert not server.served.counts
    assert sum(counts.num_draft_tokens for counts in server.served.shadow_counts.values()) > 0


def test_live_requests_have_counts_of_their_own() -> None:
    server = Server()
    server.requests = {"a": State(given()), "b": State(given(OFF))}
    for _ in range(4):
        server.step()
    live = server.served.live_counts()
    assert live["a"]["verified"]
    assert not live["b"]["verified"]


def test_unlikely_tokens_are_not_verified() -> None:
    def unsure(sequence: SequenceView, limit: int) -> Draft:
        return chain((3, 4, 5), "scripted", (0.9, 0.5, 0.006))

    server = Server([Scripted(unsure)])
    server.requests = {"a": State(given())}
    server.step()
    assert server.drafts == {"a": [3, 4]}


def test_drafts_are_verified_where_passes_show_that_they_pay() -> None:
    right = Scripted(partial(draft_chain, wrong_from=99))
    servers = [Server([right], seconds_per_draft_token=seconds) for seconds in (0.0, 1.0)]
    for server in servers:
        server.requests = {"a": State(given())}
        for _ in range(300):
            server.step()
    free, dear = (server.num_drafted for server in servers)
    assert free > 900
    assert dear < free / 3, "they are tried again from time to time"


class Resting(Payback):
    """Lets all sequences pause."""

    def __init__(self) -> None:
        super().__init__()
        self.num_observed = 0

    def begin(self, keys: Sequence[str], num_sequences: int, *, only_decodes: bool = True) -> frozenset[str]:
        return super().begin(keys[:0], num_sequences, only_decodes=only_decodes)

    def observe(self, step: StepCost, drafts: Mapping[str, tuple[int, int]]) -> None:
        self.num_observed += 1
        super().observe(step, drafts)


def test_one_in_four_steps_in_which_all_pause_is_observed() -> None:
    server = Server()
    server.served._payback = payback = Resting()
    server.requests = {"a": State(given())}
    for _ in range(41):
        server.step()
    assert payback.num_observed == 10


@pytest.mark.parametrize("extra", [{"prolepsis_proposer": "none"}, {"prolepsis_depth": "deep"}, {"prolepsis_mode": 3}])
def test_what_is_not_known_counts_as_not_given(extra: dict[str, Any]) -> None:
    server, usual = Server(), Server()
    assert server.run(given(extra)) == usual.run(given())
    assert server.num_drafted == usual.num_drafted > 0


def broken(sequence: SequenceView, limit: int) -> Draft:
    raise ValueError("no draft today")


def test_a_proposer_that_raises_costs_its_draft_only() -> None:
    assert Server([Scripted(broken)]).run(given()) == Server().run(given(OFF))


@pytest.mark.parametrize(("extra", "learns"), [({"prolepsis_salt": "x"}, True), (None, False)])
def test_outputs_are_shared_under_a_salt_only(extra: dict[str, Any] | None, learns: bool) -> None:
    server = Server([ChainProposer(SuffixProposer())])
    accepted: list[int] = []
    for _ in range(2):
        server.run(given(extra, temperature=1.0))
        accepted.append(server.served.counts["suffix"].num_accepted - sum(accepted))
    assert (accepted[1] > accepted[0]) is learns


@pytest.mark.parametrize(
    "settings", [{"logprobs": 2}, {"bad_words": ["x"]}, {"allowed_token_ids": [1]}, {"logit_bias": {1: 2.0}}]
)
def test_parameters_of_vllms_own_sampler_are_known(settings: dict[str, Any]) -> None:
    assert not is_ours(given(None, **settings))
    assert is_ours(given())


TREE = Draft((1, 2, 3, 4), (-1, 0, 0, 1), "scripted", (0.9, 0.8, 0.1, 0.5), buckets=(1, 2, 3, 4))


@pytest.mark.parametrize(
    ("draft", "limit", "left"),
    [(TREE, 8, (1, 2)), (TREE, 1, (1,)), (chain((5, 6, 7), "scripted"), 8, (5, 6, 7)), (TREE, 0, ())],
)
def test_branches_are_left_out(draft: Draft, limit: int, left: tuple[int, ...]) -> None:
    found = chain_of(draft, limit)
    assert found.tokens == left
    assert found.is_chain
    assert found.fault(100, limit) is None


def test_a_proposer_is_asked_for_more_nodes_and_keeps_its_chain() -> None:
    asked: list[int] = []

    def propose(sequence: SequenceView, limit: int) -> Draft:
        asked.append(limit)
        return TREE

    inner = Scripted(propose)
    proposer, sequence = ChainProposer(inner), FakeSequence([1, 2])
    [draft] = proposer.propose([sequence], [2])
    assert draft is not None
    assert draft.tokens == (1, 2)
    assert asked == [4]
    proposer.forget(sequence)
    assert inner.forgotten == [sequence.key]
    assert proposer.memory() == inner.memory()
    assert proposer.serves(sequence)
