"""The sampling kernel reads rows as they lie, and none that is not there."""

import gc

import pytest
import torch

from prolepsis.core.requests import SamplingParams
from prolepsis.engine.native.picking import row_of
from prolepsis.engine.sampling.noise import native_kernel
from prolepsis.engine.sampling.sampler import DraftRows, Sampler, SamplingRow
from tests.engine.models.kernels import NEEDS_KERNELS, team

pytestmark = NEEDS_KERNELS
SIZE = 100
LOGITS = torch.randn(6, 160, generator=torch.Generator().manual_seed(2))
PARAMS = SamplingParams(temperature=0.8, top_p=0.9)


def test_rows_of_a_wider_matrix() -> None:
    view, whole = LOGITS[::2, 16 : 16 + SIZE], LOGITS[::2, 16 : 16 + SIZE].contiguous()
    rows = [SamplingRow(PARAMS, 7, i) for i in range(3)]
    drafts = [DraftRows(PARAMS, 7, 0, 1, [3], [-1], frozenset([1]), 2)]
    sampler = Sampler(SIZE, ())
    for pick in (
        sampler.argmax,
        lambda logits: sampler.pick(logits, rows),
        lambda logits: sampler.verify(logits, drafts),
    ):
        assert pick(view) == pick(whole)
    assert sampler.below_infinity(view, [0, 2]) == [True, True]


def test_nothing_to_pick() -> None:
    sampler = Sampler(SIZE, (), team=team(2))
    assert sampler.argmax(LOGITS, []) == []
    assert sampler.pick(LOGITS, [], []) == []
    assert sampler.verify(LOGITS, []) == []


@pytest.mark.parametrize("at", [[6], [-1], [0, 7]])
def test_rows_that_are_not_there_are_refused(at: list[int]) -> None:
    with pytest.raises(ValueError, match=r"allowed: float32 rows of 100"):
        Sampler(SIZE, ()).argmax(LOGITS, at)


def test_a_draft_past_the_last_row_is_refused() -> None:
    with pytest.raises(ValueError, match=r"rows \[5, 6\]"):
        Sampler(SIZE, ()).verify(LOGITS, [DraftRows(PARAMS, 7, 0, 5, [3], [-1], frozenset(), 2)])


def test_rows_that_are_too_short_are_refused() -> None:
    kernel = native_kernel()
    assert kernel is not None
    with pytest.raises(ValueError, match="float32 rows of 161"):
        kernel.argmax(LOGITS, 161, [0])
    with pytest.raises(ValueError, match=r"takes torch.float32 \[100\].*given torch.float16"):
        row_of(LOGITS[0, :SIZE].half(), SIZE, (1.0, 0, 1.0, 0.0), 7)
    with pytest.raises(ValueError, match=r"takes torch.float64 \[100\]"):
        kernel.probabilities(row_of(LOGITS[0, :SIZE], SIZE, (1.0, 0, 1.0, 0.0), 7), SIZE, torch.empty(SIZE))


def test_a_team_outlives_the_model_that_lent_it() -> None:
    team.cache_clear()
    sampler = Sampler(SIZE, (), team=team(2))
    team.cache_clear()
    gc.collect()
    rows = [SamplingRow(PARAMS, 7, i) for i in range(6)]
    logits = LOGITS[:, :SIZE]
    assert sampler.pick(logits, rows) == [
        Sampler(SIZE, ()).pick(logits[i : i + 1], [row])[0] for i, row in enumerate(rows)
    ]
