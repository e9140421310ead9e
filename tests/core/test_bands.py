"""Bands of answers: each is in one by caches, and in one by its length if an engine wrote it."""

from dataclasses import replace

import pytest

from prolepsis.core.bands import Band, bands_of
from prolepsis.core.ended import Answer
from prolepsis.core.requests import GenerateRequest, SamplingParams
from prolepsis.core.stats import DeviceSeconds, ProposerCounts, RequestStats
from prolepsis.core.telemetry.metrics import Metrics
from tests.core.telemetry.series import value
from tests.core.telemetry.test_requests import ABOUT, ended, prompt


def stats(cached: int = 0, output: int = 64) -> RequestStats:
    counts = {"suffix": ProposerCounts(num_drafts=2, num_draft_tokens=8, num_accepted=6)}
    device = DeviceSeconds(plain=1.0, verify=0.3, propose=0.1)
    return RequestStats(100, cached, output, proposers=counts, device=device)


@pytest.mark.parametrize(
    ("cached", "output", "answer", "front", "bands"),
    [
        (0, 64, "complete", False, ("cached_none", "answer_to_64")),
        (1, 65, "cut", False, ("cached_under_half", "answer_to_500")),
        (49, 500, "complete", False, ("cached_under_half", "answer_to_500")),
        (50, 501, "complete", False, ("cached_half_or_more", "answer_over_500")),
        (50, 501, "complete", True, ("front_cache", "answer_over_500")),
        (100, 501, "cached", True, ("response_cache",)),
        (0, 3, "unreported", True, ()),
    ],
)
def test_an_answer_is_in_one_band_by_caches_and_in_one_by_length(
    cached: int, output: int, answer: Answer, front: bool, bands: tuple[Band, ...]
) -> None:
    one = replace(prompt(), stats=stats(cached, output), answer=answer)
    assert bands_of(replace(ABOUT, front_cache=front), one) == bands


def test_samples_count_by_their_mean_length() -> None:
    two = GenerateRequest("a", (1, 2), SamplingParams(), n=2)
    assert bands_of(ABOUT, replace(prompt(), request=two, stats=stats(output=128)))[1] == "answer_to_64"


def test_a_stored_answer_adds_volume_and_no_drafts() -> None:
    metrics = Metrics()
    stored = RequestStats(num_prompt_tokens=100, num_cached_tokens=100, num_output_tokens=40)
    metrics.requests.ended(ended(replace(prompt("off"), answer="cached", stats=stored)))
    metrics.requests.ended(ended(replace(prompt(), stats=stats(cached=60))))
    found = {
        band: [value(metrics, "band_tokens_total", band=band, result=result) for result in ("emitted", "drafted")]
        for band in ("response_cache", "cached_half_or_more", "answer_to_64")
    }
    assert found == {"response_cache": [40, 0], "cached_half_or_more": [64, 8], "answer_to_64": [64, 8]}
    assert value(metrics, "request_acceptance_ratio_count", route="/v1/x") == 1, "of the one with drafts"
    assert value(metrics, "request_acceptance_ratio_bucket", route="/v1/x", le="0.75") == 1


def test_corrections_cost_the_rejected_share_of_what_drafts_took() -> None:
    assert stats().correction_s == pytest.approx(0.1), "a quarter of the tokens was rejected"
    assert RequestStats(device=DeviceSeconds(verify=1.0)).correction_s == 0.0
