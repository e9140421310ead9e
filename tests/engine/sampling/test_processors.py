import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from prolepsis.core.requests import SamplingParams
from prolepsis.engine.sampling.processors import LogitBias, SamplingRow, TokenHistory, edit, is_edited
from tests.engine.sampling import brute_force

LOGITS = torch.tensor([2.0, -1.0, 0.5, -0.25, 3.0])
ENDS = frozenset({4})


@pytest.mark.parametrize(
    ("params", "edits"),
    [
        (SamplingParams(), False),
        (SamplingParams(temperature=0.0, top_k=3, top_p=0.5, min_p=0.1), False),
        (SamplingParams(logit_bias=((1, 2.0),)), True),
        (SamplingParams(allowed_token_ids=(0, 1)), True),
        (SamplingParams(min_tokens=3), True),
        (SamplingParams(min_tokens=2), False),
        (SamplingParams(repetition_penalty=1.1), True),
        (SamplingParams(presence_penalty=-0.5), True),
        (SamplingParams(frequency_penalty=0.5), True),
    ],
)
def test_rows_that_need_no_edit_are_passed_through(params: SamplingParams, edits: bool) -> None:
    assert is_edited(params, 2) == edits
    result = edit(LOGITS, SamplingRow(params, 0, 2, TokenHistory([0]), bias=LogitBias.of(params)), ENDS)
    assert (result is LOGITS) == (not edits)


def test_the_given_logits_are_never_written() -> None:
    before = LOGITS.clone()
    params = SamplingParams(logit_bias=((0, 5.0),), repetition_penalty=2.0, min_tokens=9)
    edit(LOGITS, SamplingRow(params, 0, 0, TokenHistory([0, 1]), bias=LogitBias.of(params)), ENDS)
    assert torch.equal(LOGITS, before)


@pytest.mark.parametrize(
    ("params", "lacks"),
    [(SamplingParams(presence_penalty=1.0), "history"), (SamplingParams(logit_bias=((0, 1.0),)), "arrays")],
)
def test_a_row_without_what_its_parameters_need_is_a_broken_invariant(params: SamplingParams, lacks: str) -> None:
    with pytest.raises(AssertionError, match=lacks):
        edit(LOGITS, SamplingRow(params, 0, 0), ENDS)


PENALTIES = st.builds(
    SamplingParams,
    repetition_penalty=st.sampled_from([1.0, 0.7, 1.3]),
    presence_penalty=st.sampled_from([0.0, -0.5, 1.5]),
    frequency_penalty=st.sampled_from([0.0, -0.25, 0.75]),
    min_tokens=st.integers(0, 8),
    logit_bias=st.sampled_from([(), ((1, 0.5), (3, -2.0))]),
    allowed_token_ids=st.sampled_from([(), (0, 3, 4), (4,)]),
)
TOKENS = st.lists(st.integers(0, 4), max_size=6)


@given(PENALTIES, TOKENS, TOKENS, TOKENS)
def test_edits_equal_brute_force(
    params: SamplingParams, prompt: list[int], output: list[int], prefix: list[int]
) -> None:
    history = TokenHistory(prompt)
    history.append(output)
    row = SamplingRow(params, 0, len(output) + len(prefix), history, tuple(prefix), bias=LogitBias.of(params))
    expected = brute_force.edited(LOGITS.tolist(), params, prompt, output + prefix, ENDS)
    for got, want in zip(edit(LOGITS, row, ENDS).tolist(), expected, strict=True):
        assert got == want if math.isinf(want) else math.isclose(got, want, rel_tol=1e-14, abs_tol=1e-14)
