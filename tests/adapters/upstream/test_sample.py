"""Where samples end, whatever the engine says; requests share the time of their pool."""

import pytest

from prolepsis.adapters.upstream.api import Chunk
from prolepsis.adapters.upstream.pool import SharedTime
from prolepsis.adapters.upstream.sample import UpstreamSample
from prolepsis.core.events import Tokens
from prolepsis.core.requests import GenerateRequest, GrammarSpec, SamplingParams
from prolepsis.engine.text.stream import StopStrings
from tests.adapters.upstream.fakes import PROMPT, request
from tests.clock import Clock
from tests.server.fakes import ByteTokenizer

END = 256


def sample_of(asked: GenerateRequest, index: int = 0, max_model_len: int = 64) -> UpstreamSample:
    stop = StopStrings.of(asked.params.stop)
    return UpstreamSample(
        asked, index, eos_token_ids=(END,), detokenizer=ByteTokenizer(), stop=stop, max_model_len=max_model_len
    )


def taken(sample: UpstreamSample, *chunks: Chunk) -> list[Tokens]:
    return [event for chunk in chunks if (event := sample.take(chunk)) is not None]


def said(events: list[Tokens]) -> tuple[bytes, str | None, object]:
    text = bytes(token for event in events for token in event.token_ids if token < END)
    return text, events[-1].finish_reason, events[-1].stop_reason


HELLO = tuple(b"hello world")


@pytest.mark.parametrize(
    ("params", "chunks", "expected"),
    [
        (SamplingParams(), [Chunk((*HELLO, END)), Chunk(finish="stop")], (b"hello world", "stop", None)),
        (SamplingParams(), [Chunk(HELLO), Chunk(finish="stop")], (b"hello world", "stop", None)),
        (SamplingParams(max_tokens=5), [Chunk(HELLO)], (b"hello", "length", None)),
        (SamplingParams(stop=("o w",)), [Chunk(HELLO[:5]), Chunk(HELLO[5:])], (b"hello w", "stop", "o w")),
        (SamplingParams(stop_token_ids=(108,)), [Chunk(HELLO)], (b"hel", "stop", 108)),
        (SamplingParams(ignore_eos=True), [Chunk((104, END, 105)), Chunk(finish="length")], (b"hi", "length", None)),
    ],
)
def test_ends(params: SamplingParams, chunks: list[Chunk], expected: tuple[bytes, str, object]) -> None:
    sample = sample_of(request(params=params))
    assert said(taken(sample, *chunks)) == expected
    assert sample.ended
    assert taken(sample, Chunk((1, 2))) == []


def test_positions_go_on() -> None:
    events = taken(sample_of(request()), Chunk(HELLO[:3]), Chunk(HELLO[3:4]), Chunk(), Chunk(HELLO[4:]))
    assert [event.position for event in events] == [0, 3, 4]


def test_an_answer_ends_with_the_context() -> None:
    sample = sample_of(request(params=SamplingParams(max_tokens=60)), max_model_len=8)
    assert sample.ask("m").params.max_tokens == 6
    assert said(taken(sample, Chunk(HELLO))) == (b"hello ", "length", None)


def test_what_is_left_to_ask_for() -> None:
    params = SamplingParams(max_tokens=20, min_tokens=4)
    sample = sample_of(request(params=params, cache_salt="4:bank"))
    taken(sample, Chunk(HELLO[:3]))
    ask = sample.ask("m")
    assert ask.token_ids == (*PROMPT, *HELLO[:3])
    assert (ask.params.max_tokens, ask.params.min_tokens) == (17, 1)
    assert "bank" not in ask.cache_salt
    assert len(ask.cache_salt) == 64
    assert sample_of(request()).ask("m").cache_salt == ""


def test_samples_differ_by_their_seed() -> None:
    asked = request(params=SamplingParams(seed=7), n=3)
    seeds = [sample_of(asked, index).ask("m").params.seed for index in range(3)]
    assert seeds[0] == 7
    assert len(set(seeds)) == 3
    assert all(0 <= seed < 2**63 for seed in seeds)


@pytest.mark.parametrize(
    ("asked", "may"),
    [
        (request(), True),
        (request(params=SamplingParams(temperature=0.8, repetition_penalty=1.1)), True),
        (request(params=SamplingParams(presence_penalty=0.5)), False),
        (request(params=SamplingParams(frequency_penalty=0.5)), False),
        (request(grammar=GrammarSpec("regex", "a*")), False),
    ],
)
def test_what_another_pool_can_go_on_with(asked: GenerateRequest, may: bool) -> None:
    sample = sample_of(asked)
    assert sample.may_continue, "nothing was emitted yet"
    taken(sample, Chunk((104,)))
    assert sample.may_continue == may


def test_the_shares_add_up_to_the_time_with_requests() -> None:
    clock = Clock(5.0)
    time = SharedTime(clock)
    clock.now = 10.0  # nobody is charged for it
    first = time.enter()
    clock.now = 12.0
    second = time.enter()
    clock.now = 16.0
    first = time.leave() - first
    clock.now = 17.0
    second = time.leave() - second
    clock.now = 30.0
    assert (first, second) == pytest.approx((2.0 + 4.0 / 2, 4.0 / 2 + 1.0))
    assert time.num_requests == 0
    assert time.read() == pytest.approx(2.0 + 4.0 / 2 + 1.0)
