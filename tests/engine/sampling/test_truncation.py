import pytest
import torch

from prolepsis.core.requests import SamplingParams
from prolepsis.engine.sampling import sampler as truncation


def kept_ids(logits: list[float], params: SamplingParams) -> list[int]:
    scaled = truncation.scale(torch.tensor(logits), params.temperature)
    return [int(token) for token in truncation.kept(scaled, params).nonzero().squeeze(1).tolist()]


def test_top_k_keeps_exactly_k_the_lowest_ids_among_equals() -> None:
    assert kept_ids([1.0, 2.0, 1.0, 1.0, 2.0], SamplingParams(top_k=3)) == [0, 1, 4]
    assert kept_ids([0.0, 0.0, 0.0], SamplingParams(top_k=2)) == [0, 1]
    assert kept_ids([0.0, 1.0], SamplingParams(top_k=5)) == [0, 1]


def test_nucleus_is_the_shortest_run_that_reaches_its_mass() -> None:
    assert kept_ids([0.0, 0.0, 0.0, 0.0], SamplingParams(top_p=0.5)) == [0, 1]
    assert kept_ids([0.0, 0.0, 0.0, 0.0], SamplingParams(top_p=0.51)) == [0, 1, 2]
    assert kept_ids([0.0, 9.0, 0.0], SamplingParams(top_p=1e-9)) == [1]


def test_nucleus_counts_the_mass_that_top_k_left() -> None:
    assert kept_ids([0.0, 0.0, 0.0, 0.0], SamplingParams(top_k=2, top_p=0.5)) == [0]


def test_min_p_is_relative_to_the_likeliest() -> None:
    logits = torch.tensor([1.0, 0.5, 0.25]).log().tolist()
    assert kept_ids(logits, SamplingParams(min_p=0.4)) == [0, 1]
    assert kept_ids([3.0, 3.0, 2.9], SamplingParams(min_p=1.0)) == [0, 1]


def test_a_wide_nucleus_needs_the_whole_row() -> None:
    assert kept_ids([0.0] * 5000, SamplingParams(top_p=0.9)) == list(range(4500))


@pytest.mark.parametrize("temperature", [1e-320, 1e-12, 2.0])
def test_extreme_temperatures_stay_finite_and_keep_ties(temperature: float) -> None:
    scaled = truncation.scale(torch.tensor([500.0, 500.0, -500.0]), temperature)
    assert scaled[:2].tolist() == [0.0, 0.0]
    assert scaled[2] < 0
