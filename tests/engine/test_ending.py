"""Where sequences end inside a step's tokens, and drafts that stop there."""

import pytest

from prolepsis.core.requests import SamplingParams
from prolepsis.engine.drafting.draft import ROOT, Draft, chain
from prolepsis.engine.ending import Ending, cut_after_end, find_ending
from prolepsis.engine.request import SequenceState, open_request
from tests.fakes import EOS, Letters, request


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
