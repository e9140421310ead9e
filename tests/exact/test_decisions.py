"""The log-probabilities of a prompt's end equal the target's own, and its begin comes from the cache."""

import pytest

from prolepsis.core.events import Finished
from prolepsis.core.page_size import PAGE_SIZE
from prolepsis.core.requests import GenerateRequest, SamplingParams
from tests.exact.serving import setup_of
from tests.exact.test_prompt_logprobs import PROMPT, expected, scores_of
from tests.fakes import build, run

BEGIN = 3 * PAGE_SIZE + 2
"""Tokens before those that are scored."""
SCORED = SamplingParams(temperature=0.0, max_tokens=0, prompt_logprobs=0, scored_from=BEGIN)


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_the_end_of_a_prompt_is_scored_behind_a_cached_begin(prefix_cache: bool) -> None:
    engine = build(setup_of(prefix_cache=prefix_cache))
    other = (*PROMPT[:BEGIN], *reversed(PROMPT[BEGIN:]))
    for request_id, prompt, num_cached in (("first", PROMPT, 0), ("second", other, 3 * PAGE_SIZE)):
        events = run(engine, GenerateRequest(request_id, prompt, SCORED))
        found = scores_of(events, request_id)
        assert found is not None
        right = [one.logprob for one in expected(prompt, 0)[BEGIN - 1 :]]
        assert [one.logprob for one in found] == pytest.approx(right, abs=1e-6)
        [stats] = [event.stats for event in events if isinstance(event, Finished)]
        assert stats.num_cached_tokens == (num_cached if prefix_cache else 0)
        assert stats.num_output_tokens == 0
