"""Prompts next to requests that decode: how much of them a step reads, whose turn it is, and that outputs stay."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from prolepsis.core.events import Event
from prolepsis.core.requests import GenerateRequest, LatencyTarget, SamplingParams
from prolepsis.engine.chunks import LEAST_TOKENS, MOST_READ, ChunkLimit, ReadingTurns
from prolepsis.engine.drafting.cost import flat_cost
from prolepsis.engine.drafting.draft import Draft
from prolepsis.engine.drafting.proposer import Proposer, SequenceView
from prolepsis.engine.models.protocol import Batch, KVCache
from prolepsis.engine.request import SequenceState, open_request
from prolepsis.engine.rows import Row
from prolepsis.engine.sampling.noise import noise_key
from prolepsis.engine.step import Engine
from tests.fakes import VOCAB, EngineSetup, TableModel, build, draft_tree, drain, outputs, reference, request, submit

MOST = 500
DECODES = SamplingParams(temperature=0.0, max_tokens=100, ignore_eos=True)
SHORT = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True)


def _sequence(key: str, num_tokens: int = 1, *, priority: int = 0) -> SequenceState:
    source = GenerateRequest(key, (1,) * num_tokens, SHORT, priority=priority)
    return open_request(source, 0.0, 0, (), None).sequences[0]


def _decoding(number: int, start: int = 64) -> list[Row]:
    return [Row(_sequence(str(i)), start, 1) for i in range(number)]


def _read(number: int, start: int = 0) -> Row:
    return Row(_sequence("prompt", 9000), start, number)


def _limit(limit_ms: float = 40.0) -> ChunkLimit:
    """A pass is predicted to take 10 ms and 0.1 a token."""
    return ChunkLimit(limit_ms, flat_cost(10.0, 0.1))


def test_alone_and_without_a_limit_a_prompt_may_have_the_whole_step() -> None:
    limited, free = _limit(), _limit(0.0)
    for chunks in (limited, free):
        chunks.observe([_read(500)], 5000.0)
    assert limited.max_tokens([], 0, MOST) == MOST
    assert free.max_tokens(_decoding(4), 0, MOST) == MOST
    assert limited.max_tokens(_decoding(4), 0, MOST) < 10 + LEAST_TOKENS


def test_chunks_shrink_where_even_passes_without_others_are_long() -> None:
    chunks = _limit()
    for _ in range(8):
        chunks.observe([_read(500)], 75_000.0)  # a machine that others load
    assert chunks.max_tokens([], 0, MOST) == 33
    for _ in range(8):
        chunks.observe([_read(33)], 300_000.0)
    assert chunks.max_tokens([], 0, MOST) == LEAST_TOKENS


def test_before_any_prompt_was_read_the_cost_curve_decides() -> None:
    assert _limit().max_tokens(_decoding(1), 0, MOST) == 400


def test_a_token_costs_what_the_pass_takes_beyond_its_decoding_rows() -> None:
    chunks = _limit()
    for _ in range(8):
        chunks.observe(_decoding(10), 22.0)  # twice the prediction
    for _ in range(8):
        chunks.observe([*_decoding(10), _read(100)], 122.0)
    assert chunks.token_ms(0) == pytest.approx(1.0)
    assert chunks.max_tokens(_decoding(10), 0, MOST) == 40


def test_where_decoding_itself_is_slow_prompts_may_take_half_of_its_time() -> None:
    chunks = _limit()
    for _ in range(8):
        chunks.observe(_decoding(10), 200.0)
        chunks.observe([*_decoding(10), _read(100)], 300.0)
    assert chunks.max_tokens(_decoding(10), 0, MOST) == 100


def test_a_token_behind_a_long_context_costs_more_and_others_do_not() -> None:
    chunks = _limit()
    chunks.observe([_read(100)], 110.1)
    chunks.observe([_read(100, 8000)], 410.1)
    assert chunks.token_ms(100) == pytest.approx(1.0, rel=0.01)
    assert chunks.token_ms(8100) == chunks.token_ms(30_000) == pytest.approx(4.0, rel=0.01)


def test_one_pass_that_others_disturbed_changes_nothing() -> None:
    chunks = _limit()
    for ms in (110.0, 110.0, 9000.0, 110.0):
        chunks.observe([_read(100)], ms)
    assert chunks.token_ms(0) == pytest.approx(1.0, rel=0.01)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 8),
            st.integers(0, 600),
            st.integers(0, 40_000),
            st.one_of(st.floats(), st.sampled_from([0.0, -1.0, 1e-300, 1e300, math.nan, math.inf])),
        ),
        max_size=12,
    ),
    st.floats(0.0, 1e6),
    st.integers(1, 8),
    st.integers(1, 600),
)
def test_no_time_of_a_pass_makes_a_chunk_that_is_empty_or_larger_than_its_step(
    passes: Sequence[tuple[int, int, int, float]], limit_ms: float, number: int, most: int
) -> None:
    chunks = _limit(limit_ms)
    for num_decoding, num_tokens, start, ms in passes:
        chunks.observe([*_decoding(num_decoding, start), *([_read(num_tokens, start)] if num_tokens else [])], ms)
        assert min(most, LEAST_TOKENS) <= chunks.max_tokens(_decoding(number), start, most) <= most
        assert 0.0 <= chunks.token_ms(start) < math.inf


def test_prompts_are_read_in_turns_and_a_short_one_soon() -> None:
    turns = ReadingTurns()
    left = {f"long {i}": 1000 for i in range(4)} | {"short": 40}
    prompts = [_sequence(key, number) for key, number in left.items()]
    read: list[str] = []
    for _ in range(16):
        first = turns.order(prompts, 0.0)[0]
        turns.took(first)
        read.append(first.key.removesuffix("/0"))
        first.num_computed += 20
        prompts = [one for one in prompts if one.num_pending]
    assert read[1:4].count("short") == 2, "every other turn is that of the shortest"
    assert set(read[:10]) == set(left), "and all come in turn"


def test_a_prompt_of_better_priority_is_read_first() -> None:
    turns = ReadingTurns()
    prompts = [_sequence("better", 1000, priority=-1), _sequence("worse", 10)]
    for _ in range(4):
        assert [one.key for one in turns.order(prompts, 0.0)] == ["better/0", "worse/0"]
        turns.took(prompts[0])


def test_a_target_for_the_first_token_comes_in_every_other_turn_until_it_is_missed() -> None:
    turns = ReadingTurns()
    prompts = [_sequence("short", 10), _sequence("long", 1000), _sequence("later", 1000)]
    for prompt, target_ms in zip(prompts[1:], (500.0, 900.0), strict=True):
        prompt.request.source = replace(prompt.request.source, target=LatencyTarget(first_token_ms=target_ms))
    first: list[str] = []
    for now in (0.1, 0.2, 0.3, 0.6, 0.7, 0.8, 0.9, 1.0):
        chosen = turns.order(prompts, now)[0]
        turns.took(chosen)
        first.append(chosen.key.removesuffix("/0"))
    assert first[1::2] == ["long", "later", "later", "short"]
    assert set(first[::2]) == {"short", "long"}, "who has waited longest, as ever: later has had two turns"


class Slow(TableModel):
    """A pass takes 30 ms, and 1 ms for each of its tokens, on a clock of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def forward(self, batch: Batch, cache: KVCache) -> Tensor:
        self.now += 0.030 + 0.001 * len(batch.token_ids)
        return super().forward(batch, cache)


def _engine(chunks: ChunkLimit | None) -> Engine:
    model = Slow()
    engine = build(EngineSetup(num_pages=256, max_sequences=16, max_model_len=512, model=model, chunks=chunks))
    engine.timings.clock = lambda: model.now
    return engine


def _long(key: str, number: int = 400) -> GenerateRequest:
    return request(key, [(len(key) * 7 + j) % VOCAB for j in range(number)], SHORT)


def test_streams_go_on_next_to_long_prompts_and_all_outputs_are_the_same() -> None:
    asked = [request("stream", [1, 2], DECODES), *(_long(str(i)) for i in range(4))]
    engine = _engine(_limit(20.0))
    submit(engine, asked[0])
    events = [event for _ in range(12) for event in engine.step()]
    submit(engine, *asked[1:])
    events += drain(engine)
    mixed = [one for one in engine.timings.last if one.num_sequences > 1]
    assert max(one.num_tokens for one in mixed[:1]) == 64, "nothing is known of prompts yet"
    assert {one.num_tokens for one in mixed[1:40]} <= {20, 21, 22}, "what takes 20 ms, and the stream's own token"
    for source in asked:
        assert outputs(events)[source.request_id, 0] == reference(source, noise_key(0, 0), max_model_len=512)


def test_all_prompts_come_in_turn_and_a_short_one_does_not_wait_for_the_long() -> None:
    engine = _engine(_limit(20.0))
    submit(engine, request("stream", [1, 2], DECODES), *(_long(str(i)) for i in range(4)))
    for _ in range(8):
        engine.step()
    submit(engine, _long("short", 30))
    first: dict[str, int] = {}
    for step in range(60):
        for event in engine.step():
            first.setdefault(event.request_id, step)
    assert first["short"] < 8
    live = [engine.scheduler.requests[str(i)].sequences[0] for i in range(4) if str(i) not in first]
    assert live
    assert all(one.num_computed > 0 for one in live)


def test_as_many_small_prompts_as_a_step_holds_are_read_at_once_where_nothing_decodes() -> None:
    engine = _engine(_limit(20.0))
    submit(engine, *(_long(str(i), 4) for i in range(2 * MOST_READ)))
    engine.step()
    assert (engine.timings.last[-1].num_sequences, engine.timings.last[-1].num_tokens) == (16, 64)


def test_few_prompts_are_started_before_their_tokens_have_room() -> None:
    engine = _engine(_limit(20.0))
    submit(engine, *(_long(str(i)) for i in range(2 * MOST_READ)))
    engine.step()
    assert len(engine.scheduler.running) == MOST_READ


class _Branches(Proposer):
    name = "scripted"
    free = True

    def propose(self, sequences: Sequence[SequenceView], limits: Sequence[int]) -> list[Draft | None]:
        return [draft_tree(sequence, limit) for sequence, limit in zip(sequences, limits, strict=True)]


def test_targets_change_no_token() -> None:
    prompts = [request(str(i), [1 + i, *(j % VOCAB for j in range(40 * i))], DECODES, n=1 + i % 2) for i in range(6)]
    asked = [replace(one, target=LatencyTarget(8.0 + 8.0 * i, 50.0 * i)) for i, one in enumerate(prompts)]
    model, proposer = Slow(), _Branches()
    setup = EngineSetup(num_pages=256, max_model_len=512, model=model, proposers=(proposer,), chunks=_limit(20.0))
    engine = build(replace(setup, clock=lambda: model.now))
    submit(engine, *asked)
    events, urgencies = list[Event](), set[int]()
    while engine.has_work:
        events += engine.step()
        urgencies |= {sequence.urgency for sequence in engine.scheduler.running}
    assert urgencies == {-1, 0, 1}, "some were ahead, and some behind"
    for source in asked:
        for index in range(source.n):
            expected = reference(source, noise_key(0, index), max_model_len=512)
            assert outputs(events)[source.request_id, index] == expected
