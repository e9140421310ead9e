"""A rehearsed engine decides step by step as the engine that was recorded."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
from torch import Tensor

from prolepsis.core.events import Finished, Tokens
from prolepsis.core.messages import Submit
from prolepsis.core.requests import GenerateRequest, SamplingParams
from prolepsis.core.stats import RequestStats
from prolepsis.engine.drafting.cost import flat_cost
from prolepsis.engine.drafting.draft import Draft, chain
from prolepsis.engine.drafting.proposer import HiddenStates, Proposer, SequenceView
from prolepsis.engine.rows import Row, SampledTokens
from prolepsis.engine.runner import Computed
from prolepsis.engine.step import Engine
from prolepsis.lab.virtual_engine.engine import Rehearsed, ReplayedParts, rehearsed_engine, virtual_engine
from prolepsis.lab.virtual_engine.machine import Machine, ProposerCost, RehearsedSettings, VirtualClock
from prolepsis.lab.virtual_engine.replay import TimedPass, TracedRequest
from tests.fakes import VOCAB, KeyedVerifier, draft_tree, table_logits, true_continuation

MACHINE = Machine(
    engine=RehearsedSettings(max_requests=4, max_step_tokens=64, max_model_len=256, num_pages=10),
    passes=flat_cost(5.0, 0.5),
    expected=flat_cost(6.0, 0.4),
    logits_ms=0.02,
    first_ms=0.7,
    step_ms=0.3,
    row_ms=0.1,
    proposers={
        "suffix": ProposerCost(call_ms=0.01, free=True),
        "draft_head": ProposerCost(
            call_ms=0.4, sequence_ms=0.1, level_ms=0.3, sequence_level_ms=0.05, state_ms=0.01, takes_states=True
        ),
    },
)
Step = list[tuple[str, int, int, tuple[int, ...] | None, str | None, tuple[str, ...]]]
"""Of each row: request, start, tokens, parents of its draft's nodes, why it has none, and who drafted."""


class Guessing(Proposer):
    """Drafts what the target will say, with a share of wrong tokens, and now and then nothing."""

    def __init__(self, name: str, right: float, clock: VirtualClock) -> None:
        self.name, cost = name, MACHINE.proposers[name]
        self.free = cost.free
        self.aux_layers = (0,) if cost.takes_states else ()
        self._right = right
        self._cost = cost
        self._clock = clock

    def propose(self, sequences: Sequence[SequenceView], limits: Sequence[int]) -> list[Draft | None]:
        return self.propose_trees(sequences, limits, limits, 0.0)

    def propose_trees(
        self, sequences: Sequence[SequenceView], depths: Sequence[int], limits: Sequence[int], threshold: float
    ) -> list[Draft | None]:
        drafts = [self._draft(*asked, threshold) for asked in zip(sequences, depths, strict=True)]
        self._clock.advance(self._cost.ms(len(sequences), max(depths)) / 1000.0)
        return drafts

    def take(self, states: Sequence[HiddenStates]) -> None:
        self._clock.advance(self._cost.state_ms * sum(len(one.tokens) for one in states) / 1000.0)

    def _draft(self, sequence: SequenceView, limit: int, threshold: float) -> Draft | None:
        chance = random.Random(f"{self.name} {sequence.key} {len(sequence.tokens)}")
        if chance.random() < 0.2:
            return None
        if self.free and chance.random() < 0.3 and (tree := draft_tree(sequence, limit)) is not None:
            return replace(tree, proposer=self.name)
        right = true_continuation(sequence, min(limit, 5))
        tokens = tuple(token if chance.random() < self._right else (token + 1) % VOCAB for token in right)
        alive = [0.8 ** (1 + i) for i in range(len(tokens))]
        worth = 1 + sum(one > threshold for one in alive[:-1])
        return chain(tokens[:worth], self.name, tuple(alive[:worth]), bucket=2)


class TableOfTokens:
    """A `PassRunner` and `StepVerifier` of the table's target, whose passes take the time of `MACHINE`."""

    def __init__(self, clock: VirtualClock) -> None:
        self._timed = TimedPass(MACHINE, clock, random.Random(0))
        self._verifier = KeyedVerifier()

    def forward(self, rows: Sequence[Row], aux_layers: tuple[int, ...] = ()) -> Computed:
        features = self._timed.forward(rows, aux_layers).features
        logits = Tensor([line for row in rows if row.samples_next for line in _logits(row)]).reshape(-1, VOCAB)
        return Computed(logits, features)

    def compact(self, rows: Sequence[Row], sampled: Sequence[SampledTokens | None]) -> None:
        self._timed.compact(rows, sampled)

    def verify(self, rows: Sequence[Row], computed: Computed) -> list[SampledTokens | None]:
        return self._verifier.verify(rows, computed)


def _logits(row: Row) -> list[list[float]]:
    tokens, draft = row.sequence.tokens, row.draft
    paths = [list[int]()]
    for token, parent in zip(draft.tokens, draft.parents, strict=True) if draft else ():
        paths.append([*paths[parent + 1], token])
    return [table_logits([*tokens, *path]) for path in paths]


@dataclass
class Run:
    steps: list[Step] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    tokens: dict[str, list[int]] = field(default_factory=dict)
    stats: dict[str, RequestStats] = field(default_factory=dict)


def play(engine: Engine, clock: VirtualClock, requests: Sequence[tuple[float, GenerateRequest]]) -> Run:
    """Send requests when their time has come, and step until all have ended."""
    run, waiting = Run(), sorted(requests, key=lambda one: one[0])
    commit = engine.scheduler.commit

    def watched(rows: Sequence[Row], sampled: Sequence[SampledTokens | None], now: float) -> None:
        run.steps.append([_told(row) for row in rows])
        run.ends.append(now)
        commit(rows, sampled, now)

    engine.scheduler.commit = watched  # type: ignore[method-assign]
    while waiting or engine.has_work:
        if waiting and not engine.has_work:
            clock.now = max(clock.now, waiting[0][0])
        while waiting and waiting[0][0] <= clock.now:
            arrival, request = waiting.pop(0)
            engine.send(Submit(request, arrival))
        for event in engine.step():
            if isinstance(event, Tokens):
                run.tokens.setdefault(event.request_id, []).extend(event.token_ids)
            elif isinstance(event, Finished):
                run.stats[event.request_id] = event.stats
    assert not any(engine.contained.num_faults.values()), engine.contained.num_faults
    return run


def _told(row: Row) -> tuple[str, int, int, tuple[int, ...] | None, str | None, tuple[str, ...]]:
    draft = row.draft
    sources = (draft.sources or (draft.proposer,)) if draft else ()
    return row.sequence.key, row.start, row.num_tokens, draft.parents if draft else None, row.plain, sources


def asked(count: int, seed: int = 0) -> list[tuple[float, GenerateRequest]]:
    """Return requests of which some share a prefix, some wait, and some are preempted."""
    chance = random.Random(seed)
    shared = [chance.randrange(1, VOCAB) for _ in range(64)]
    requests = []
    for i in range(count):
        own = [chance.randrange(1, VOCAB) for _ in range(chance.randrange(3, 40))]
        prompt = shared + own if chance.random() < 0.5 else own
        params = SamplingParams(temperature=0.0, max_tokens=chance.randrange(1, 90), ignore_eos=True)
        source = GenerateRequest(str(i), tuple(prompt), params, traffic_class="chat", records_drafts=True)
        requests.append((0.05 * i * chance.random(), source))
    return requests


def recorded(requests: Sequence[tuple[float, GenerateRequest]]) -> tuple[Run, list[tuple[float, TracedRequest]]]:
    """Run them on the table's target; return the run, and the trace without any token of it."""
    clock = VirtualClock()
    table = TableOfTokens(clock)
    proposers = [Guessing("suffix", 0.7, clock), Guessing("draft_head", 0.8, clock)]
    engine = virtual_engine(MACHINE, clock, ReplayedParts(proposers, table, table, VOCAB))
    run = play(engine, clock, requests)
    return run, [(arrival, traced(request, run)) for arrival, request in requests]


def traced(request: GenerateRequest, run: Run) -> TracedRequest:
    whole = [*request.prompt_token_ids, *run.tokens[request.request_id]]
    blocks = tuple(_number(tuple(whole[: 32 * (i + 1)])) for i in range(len(whole) // 32))
    return TracedRequest(
        number=int(request.request_id),
        num_prompt_tokens=len(request.prompt_token_ids),
        num_output_tokens=len(run.tokens[request.request_id]),
        blocks=blocks,
        traffic_class=request.traffic_class,
        drafts=run.stats[request.request_id].drafts,
    )


_numbers: dict[tuple[int, ...], int] = {}


def _number(text: tuple[int, ...]) -> int:
    return _numbers.setdefault(text, len(_numbers))


def rehearse(trace: Sequence[tuple[float, TracedRequest]], rehearsed: Rehearsed) -> Run:
    for _, request in trace:
        rehearsed.answers.begin(request)
    asked = [(arrival, request.request()) for arrival, request in trace]
    return play(rehearsed.engine, rehearsed.clock, asked)


@pytest.mark.parametrize("seed", range(4))
def test_a_rehearsal_decides_step_by_step_as_the_engine_that_was_recorded(seed: int) -> None:
    run, trace = recorded(asked(24, seed))
    again = rehearse(trace, rehearsed_engine(MACHINE))
    for number, (was, now) in enumerate(zip(run.steps, again.steps, strict=True)):
        assert was == now, f"step {number}"
    assert again.ends == pytest.approx(run.ends)
    assert any(draft for step in run.steps for _, _, _, draft, _, _ in step), "some rows speculated"
    assert sum(stats.num_preemptions for stats in run.stats.values()), "pages ran out"
    assert any(stats.num_cached_tokens for stats in run.stats.values()), "prefixes were found again"
