"""The log-probabilities of a prompt's end equal the target's own, and its begin comes from the cache."""

import asyncio
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from prolepsis.core.events import Finished
from prolepsis.core.page_size import PAGE_SIZE
from prolepsis.core.requests import GenerateRequest
from tests.exact.test_dialects import Asking, with_model
from tests.exact.test_prompt_logprobs import PROMPT, SCORED, engines, expected, scores_of
from tests.fakes import build, run

BEGIN = 3 * PAGE_SIZE + 2
"""Tokens before those that are scored."""


@pytest.mark.parametrize("name", engines())
@pytest.mark.parametrize("max_tokens", [0, 5])
def test_the_end_of_a_prompt_is_scored_behind_a_cached_begin(name: str, max_tokens: int) -> None:
    engine = build(engines()[name])
    params = replace(SCORED, max_tokens=max_tokens, prompt_logprobs=0, scored_from=BEGIN)
    other = (*PROMPT[:BEGIN], *reversed(PROMPT[BEGIN:]))
    for request_id, prompt, num_cached in (("first", PROMPT, 0), ("second", other, 3 * PAGE_SIZE)):
        events = run(engine, GenerateRequest(request_id, prompt, params))
        found = scores_of(events, request_id)
        assert found is not None
        right = [one.logprob for one in expected(prompt, 0)[BEGIN - 1 :]]
        assert [one.logprob for one in found] == pytest.approx(right, abs=1e-6)
        [stats] = [event.stats for event in events if isinstance(event, Finished)]
        assert stats.num_cached_tokens == (0 if name == "no cache" else num_cached)
        assert stats.num_output_tokens == max_tokens


def test_a_candidate_has_the_log_probability_of_its_echo(tiny_family: Callable[[str, str], Path]) -> None:
    begin, candidates = "hello world " * 20, ["hello", "world", "a longer text"]

    async def work(http: httpx2.AsyncClient) -> tuple[dict[str, Any], list[float]]:
        asking = Asking(http, "off")

        async def tokens(text: str) -> list[int]:
            return list((await asking.post("/tokenize", {"content": text})).json()["tokens"])

        sums = []
        for text in candidates:
            prompt, end = await tokens(begin), await tokens(text)
            body = {"prompt": [*prompt, *end], "max_tokens": 0, "echo": True, "logprobs": 0}
            logprobs = (await asking.post("/v1/completions", body)).json()["choices"][0]["logprobs"]
            sums.append(math.fsum(logprobs["token_logprobs"][len(prompt) :]))
        reply = await asking.post("/v1/decisions", {"prompt": begin, "candidates": candidates})
        return reply.json(), sums

    reply, sums = asyncio.run(with_model(tiny_family("byte-level", "hermes"), work))
    assert [one["logprob"] for one in reply["candidates"]] == pytest.approx(sums, abs=1e-5)
    assert reply["choice"] == sums.index(max(sums))
    assert reply["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
