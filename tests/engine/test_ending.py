"""Where sequences end inside a step's tokens, and drafts that stop there."""

from dataclasses import replace
from functools import cache

import pytest
from tokenizers import Tokenizer

from prolepsis.core.events import FinishReason, Tokens
from prolepsis.core.requests import GrammarSpec, SamplingParams
from prolepsis.engine.drafting.draft import ROOT, Draft, chain
from prolepsis.engine.ending import Ending, cut_after_end, find_ending
from prolepsis.engine.request import SequenceState, open_request
from prolepsis.engine.sampling.sampler import Sampler
from prolepsis.engine.verification import Verification
from tests.engine.text.grammar import tiny
from tests.engine.text.grammar.tiny import few_tokens, grammars, token_id
from tests.fakes import EOS, VOCAB, EngineSetup, Letters, build, request, run


def sequence_of(params: SamplingParams, output: tuple[int, ...] = ()) -> SequenceState:
    sequence = open_request(request("a", [9, 9], params), 0.0, 0, (EOS,), Letters()).sequences[0]
    sequence.tokens += output
    return sequence


@pytest.mark.parametrize(
    ("params", "tokens", "ending"),
    [
        (SamplingParams(), (1, 2, 3), None),
        (SamplingParams(), (1, EOS, 3), Ending(2, "stop")),
        (SamplingParams(ignore_eos=True), (1, EOS, 3), None),
        (SamplingParams(stop_token_ids=(2,)), (1, 2, EOS), Ending(2, "stop", 2)),
        (SamplingParams(ignore_eos=True, stop_token_ids=(EOS,)), (1, EOS), Ending(2, "stop", EOS)),
        (SamplingParams(max_tokens=2), (1, 2, EOS), Ending(2, "length")),
        (SamplingParams(max_tokens=2), (1, EOS, 3), Ending(2, "stop")),
        (SamplingParams(stop=("cd",)), (1, 2, 3, 4), Ending(3, "stop", "cd")),
        (SamplingParams(stop=("cd",), max_tokens=3), (1, 2, 3, 4), Ending(3, "stop", "cd")),
        (SamplingParams(min_tokens=3, stop_token_ids=(1,)), (1, 2, 1), Ending(3, "stop", 1)),
        (SamplingParams(min_tokens=4, stop=("bc",)), (1, 2, 1, 2), Ending(4, "stop", "bc")),
    ],
)
def test_first_token_that_ends_a_sequence_wins(
    params: SamplingParams, tokens: tuple[int, ...], ending: Ending | None
) -> None:
    assert find_ending(sequence_of(params), tokens, 100) == ending


def test_context_ends_a_sample() -> None:
    assert find_ending(sequence_of(SamplingParams()), (1, 2, 3), 4) == Ending(2, "length")


def test_stop_string_is_found_across_steps() -> None:
    sequence = sequence_of(SamplingParams(stop=("bcd",)))
    assert find_ending(sequence, (1, 2), 100) is None
    assert find_ending(sequence, (3, 4), 100) == Ending(1, "stop", "bcd")


def test_draft_stops_at_a_token_that_ends_the_sample() -> None:
    ends = frozenset({EOS})
    assert cut_after_end(chain((1, EOS, 2, 3), "p"), ends).tokens == (1, EOS)
    tree = Draft((1, EOS, 2, 3, 4), (ROOT, 0, 1, 0, 3), "p")
    assert cut_after_end(tree, ends) == Draft((1, EOS, 3, 4), (ROOT, 0, 0, 2), "p")
    assert cut_after_end(tree, frozenset({9})) is tree


@cache
def few() -> Tokenizer:
    return few_tokens()


def ids(text: str) -> tuple[int, ...]:
    return tuple(tiny.EOS if char == "$" else token_id(few(), char) for char in text)


ONE = ids("1")[0]


@pytest.mark.parametrize(
    ("regex", "text", "params", "reason", "stop"),
    [
        ("[01]{2,4}", "01$", SamplingParams(), "stop", None),
        ("[01]{3}", "010", SamplingParams(), "stop", None),
        ("[01]{3}", "01$", SamplingParams(), "length", tiny.EOS),
        ("[01]{3}", "01$", SamplingParams(ignore_eos=True), "length", tiny.EOS),
        ("[01]{3}", "01$", SamplingParams(min_tokens=9), "length", tiny.EOS),
        ("[01]{3}", "01", SamplingParams(stop_token_ids=(ONE,)), "length", ONE),
        ("[01]{3}", "001", SamplingParams(stop_token_ids=(ONE,)), "stop", ONE),
        ("[01]{3}", "01", SamplingParams(stop=("1",)), "length", "1"),
        ("[01]{3}", "001", SamplingParams(stop=("1",)), "stop", "1"),
        ("[01]{3}", "01", SamplingParams(max_tokens=2), "length", None),
        ("[01]{3}", "010", SamplingParams(max_tokens=3), "stop", None),
    ],
)
def test_only_a_whole_form_is_stopped(
    regex: str, text: str, params: SamplingParams, reason: FinishReason, stop: str | int | None
) -> None:
    tokens = ids(text)
    sequence = open_request(request("a", [9], params), 0.0, 0, (tiny.EOS,), few()).sequences[0]
    sequence.matcher = grammars(few()).compile(GrammarSpec("regex", regex)).matcher(ignore_eos=params.ignore_eos)
    assert find_ending(sequence, tokens, 100) == Ending(len(tokens), reason, stop)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("allowed", ["1", "01"])
@pytest.mark.parametrize("regex", ["[01]{3}a", "[01]{3}[ab]"])
def test_an_answer_whose_caller_forbids_what_its_grammar_asks_is_cut(
    regex: str, allowed: str, temperature: float
) -> None:
    verifier = Verification(Sampler(VOCAB, (EOS,)), max_model_len=256)
    engine = build(EngineSetup(grammars=grammars(few()), detokenizer=few(), verifier=verifier))
    params = SamplingParams(temperature=temperature, max_tokens=9, allowed_token_ids=ids(allowed))
    events = run(engine, replace(request("a", [1, 2], params), grammar=GrammarSpec("regex", regex)))
    said = [event for event in events if isinstance(event, Tokens)]
    *kept, last = [token for event in said for token in event.token_ids]
    assert (len(kept), last) == (3, EOS)
    assert set(kept) <= set(ids(allowed))
    assert (said[-1].finish_reason, said[-1].stop_reason) == ("length", EOS)
