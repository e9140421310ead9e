import math

import pytest
import torch

from prolepsis.core.requests import SamplingParams
from prolepsis.engine.drafting.divergence import bf16_spacing, classify
from prolepsis.engine.sampling.noise import noise_key
from prolepsis.engine.sampling.sampler import Sampler, SamplingRow

GREEDY = SamplingRow(SamplingParams(temperature=0.0), 0, 0)


@pytest.mark.parametrize(
    ("magnitude", "spacing"), [(1.0, 2**-7), (1.99, 2**-7), (2.0, 2**-6), (16.0, 0.125), (-31.9, 0.125), (32.0, 0.25)]
)
def test_spacing_is_that_of_bfloat16(magnitude: float, spacing: float) -> None:
    assert bf16_spacing(magnitude) == spacing
    stored = torch.tensor(magnitude).to(torch.bfloat16)
    neighbour = (stored.view(torch.int16) + 1).view(torch.bfloat16)
    if stored == magnitude:
        assert abs(float(neighbour) - float(stored)) == spacing


def test_spacing_of_zero_is_tiny_not_an_error() -> None:
    assert 0 < bf16_spacing(0.0) < 1e-38


def test_greedy_margin_within_two_spacings_is_a_near_tie() -> None:
    sampler = Sampler(4, ())
    tie = classify(torch.tensor([20.0, 20.25, 1.0, 2.0]), GREEDY, (1, 0), sampler)
    assert (tie.kind, tie.margin, tie.tolerance) == ("near_tie", 0.25, 0.25)
    wrong = classify(torch.tensor([20.0, 20.375, 1.0, 2.0]), GREEDY, (1, 0), sampler)
    assert (wrong.kind, wrong.margin) == ("structural", 0.375)


def test_two_tokens_that_tie_below_the_maximum_are_structural() -> None:
    assert classify(torch.tensor([5.0, 5.0, 20.0]), GREEDY, (0, 1), Sampler(3, ())).kind == "structural"


def test_a_banned_token_is_structural() -> None:
    row = SamplingRow(SamplingParams(temperature=0.0, min_tokens=3), 0, 1)
    found = classify(torch.tensor([20.0, 20.0, 1.0]), row, (1, 0), Sampler(3, (0,)))
    assert (found.kind, found.margin) == ("structural", math.inf)


def runner_up(sampler: Sampler, logits: torch.Tensor, row: SamplingRow) -> tuple[int, int, float]:
    scores = sampler.scores(logits, row)
    best, second = torch.topk(scores, 2).indices.tolist()
    return best, second, float(scores[best] - scores[second])


@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_sampled_margin_is_that_of_the_keyed_scores(temperature: float) -> None:
    sampler = Sampler(50, ())
    logits = torch.randn(50, generator=torch.Generator().manual_seed(0)) + 20.0
    kinds = set()
    for seed in range(60):
        row = SamplingRow(SamplingParams(temperature=temperature), noise_key(seed, 0), 0)
        best, second, gap = runner_up(sampler, logits, row)
        found = classify(logits, row, (best, second), sampler)
        assert found.margin == pytest.approx(gap * temperature, abs=1e-12)
        assert found.kind == ("near_tie" if found.margin <= found.tolerance else "structural")
        kinds.add(found.kind)
    assert kinds == {"near_tie", "structural"}


@pytest.mark.parametrize(("gap", "kind"), [(0.1, "near_tie"), (1.0, "structural")])
def test_a_token_at_the_edge_of_top_k_may_enter(gap: float, kind: str) -> None:
    # tokens 0 and 1 are kept, 2 lies `gap` below the edge; find noise that would let 2 win
    sampler = Sampler(3, ())
    logits = torch.tensor([20.0, 19.9, 19.9 - gap])
    params = SamplingParams(top_k=2)
    for seed in range(200):
        row = SamplingRow(params, noise_key(seed, 0), 0)
        free = SamplingRow(SamplingParams(), noise_key(seed, 0), 0)
        kept, dropped = sampler.pick(logits[None], [row])[0], sampler.pick(logits[None], [free])[0]
        if dropped == 2:
            assert classify(logits, row, (kept, dropped), sampler).kind == kind
            assert classify(logits, row, (dropped, kept), sampler).kind == kind
            return
    pytest.fail("no seed lets the dropped token win")


@pytest.mark.parametrize(("gap", "kind"), [(0.1, "near_tie"), (1.0, "structural")])
def test_a_winner_at_the_edge_of_top_k_may_leave(gap: float, kind: str) -> None:
    # the run that dropped token 1 took token 0 although 1 scores far better
    sampler = Sampler(3, ())
    logits = torch.tensor([20.0, 19.0, 19.0 - gap])
    for seed in range(300):
        row = SamplingRow(SamplingParams(top_k=2), noise_key(seed, 0), 0)
        best, second, ahead = runner_up(sampler, logits, row)
        if best == 1 and ahead > 2.0:
            assert classify(logits, row, (1, second), sampler).kind == kind
            return
    pytest.fail("no seed lets the token at the edge win clearly")
