"""The self-check of a data plane counts the tokens that depend on the rest of the pass."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pytest

from prolepsis.adapters.vllm.data_plane import ComputedPass
from prolepsis.adapters.vllm.self_check import NUM_TOKENS, TEXTS, check_rows
from tests.adapters.vllm.table_plane import TablePlane
from tests.fakes import VOCAB

ALL = len(TEXTS) * NUM_TOKENS


def encode(text: str) -> list[int]:
    return [1 + ord(letter) % (VOCAB - 1) for letter in text]


@dataclass(slots=True)
class Unsteady(TablePlane):
    """The last row of a pass with drafts picks another token."""

    num_turned: int = 0

    def compute(self, drafts: Mapping[str, Sequence[int]]) -> ComputedPass:
        computed = TablePlane.compute(self, drafts)
        if not any(drafts.values()):
            return computed
        self.num_turned += 1
        logits = computed.logits.clone()
        logits[-1] = -logits[-1]
        return replace(computed, logits=logits)


@pytest.mark.parametrize("most_drafted", [0, 2, 100])
def test_a_plane_whose_rows_depend_on_nothing_else_has_no_difference(most_drafted: int) -> None:
    plane = TablePlane(most_drafted=most_drafted)
    found = check_rows(plane, encode, max_sequences=64, max_model_len=256)
    assert (found.num_tokens, found.num_different) == (ALL, 0)
    assert not plane.held
    assert bool(plane.verified) == bool(most_drafted)


def test_each_token_that_differs_is_counted_and_said() -> None:
    plane = Unsteady()
    found = check_rows(plane, encode, max_sequences=64, max_model_len=256)
    assert found.num_different == plane.num_turned > 0
    assert f"{plane.num_turned} of {ALL} greedy tokens" in str(found)


@pytest.mark.parametrize(("max_sequences", "max_model_len"), [(2, 256), (64, 40), (1, 12)])
def test_small_engines_are_checked_with_what_they_hold(max_sequences: int, max_model_len: int) -> None:
    plane = TablePlane()
    found = check_rows(plane, encode, max_sequences=max_sequences, max_model_len=max_model_len)
    assert 0 < found.num_tokens <= min(max_sequences, len(TEXTS)) * min(NUM_TOKENS, max_model_len)
    assert len(plane.salts) == 2 * min(max_sequences, len(TEXTS))
