"""POST /v1/decisions: the choice among given texts by the log-probabilities of their tokens."""

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import httpx2
import pytest

from prolepsis.core.engine_client import EngineInfo
from prolepsis.core.events import Event, Finished, TokenLogprobs, Tokens
from prolepsis.core.requests import GenerateRequest
from prolepsis.server.openai.decisions import shares
from tests.fake_client import INFO
from tests.server.conftest import served
from tests.server.fakes import FakeEngine

BODY: dict[str, Any] = {"model": "tiny", "prompt": "The sky is", "candidates": [" green", " blue", " b"]}


def likelihood(token: int) -> float:
    return -(token % 5) / 4


class Scoring(FakeEngine):
    """A byte's log-probability depends on the byte alone."""

    def __init__(self, info: EngineInfo = INFO) -> None:
        super().__init__(info=info)
        self.begun: list[tuple[str, int]] = []
        """Each request with the number of those that had ended when it began."""
        self.num_ended = 0

    def _say(self, request: GenerateRequest) -> Iterable[Event | float | Exception]:
        self.begun.append((request.request_id, self.num_ended))
        scored = request.prompt_token_ids[request.params.scored_from :]
        logprobs = tuple(TokenLogprobs(likelihood(token)) for token in scored)
        yield 0.01
        yield Tokens(request.request_id, 0, (), 0, finish_reason="length", prompt_logprobs=logprobs)
        self.num_ended += 1
        yield Finished(request.request_id, self._stats(request, 0))


def decide(engine: FakeEngine, **fields: object) -> httpx2.Response:
    with served(engine) as running:
        return httpx2.post(f"{running.url}/v1/decisions", json={**BODY, **fields})


def test_the_likeliest_text_is_the_choice() -> None:
    reply = decide(Scoring()).json()
    sums = [math.fsum(map(likelihood, text.encode())) for text in BODY["candidates"]]
    found = reply["candidates"]
    assert [one["logprob"] for one in found] == pytest.approx(sums)
    assert [one["num_tokens"] for one in found] == [6, 5, 2]
    assert [one["text"] for one in found] == BODY["candidates"]
    assert reply["choice"] == sums.index(max(sums))
    total = sum(map(math.exp, sums))
    assert [one["probability"] for one in found] == pytest.approx([math.exp(one) / total for one in sums])
    assert (reply["object"], reply["model"]) == ("decision", "tiny")
    assert reply["usage"]["completion_tokens"] == 0


def test_only_the_candidates_are_scored_and_the_first_runs_alone() -> None:
    engine = Scoring()
    decide(engine)
    begin = BODY["prompt"].encode()
    assert [bytes(one.prompt_token_ids) for one in engine.requests] == [
        begin + text.encode() for text in BODY["candidates"]
    ]
    for request in engine.requests:
        assert (request.params.max_tokens, request.params.prompt_logprobs) == (0, 0)
        assert request.params.scored_from == len(begin)
    assert [num_ended for _, num_ended in engine.begun] == [0, 1, 1]


def test_a_conversation_goes_through_the_template() -> None:
    engine = Scoring()
    messages = [{"role": "user", "content": "Hi"}]
    assert decide(engine, prompt=None, messages=messages, candidates=["a"]).json()["candidates"][0]["probability"] == 1
    assert bytes(engine.requests[0].prompt_token_ids) == b"user:Hi\na"


def test_an_engine_that_scores_nothing_chooses_nothing() -> None:
    class Silent(FakeEngine):
        def _say(self, request: GenerateRequest) -> Iterable[Event | float | Exception]:
            yield Tokens(request.request_id, 0, (), 0, finish_reason="length")
            yield Finished(request.request_id, self._stats(request, 0))

    reply = decide(Silent())
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "candidates"


def test_shares_of_unlikely_texts_add_up_too() -> None:
    assert shares([-2000.0, -2000.0]) == [0.5, 0.5]
    assert shares([-1e5, -1.0]) == [0.0, 1.0]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"candidates": []}, "candidates"),
        ({"candidates": [""]}, "candidates"),
        ({"candidates": ["a"] * 65}, "candidates"),
        ({"prompt": ""}, "prompt has no tokens"),
        ({"prompt": None}, "needs either 'prompt' or 'messages'"),
        ({"candidates": ["a" * 600]}, "512"),
    ],
)
def test_bad_bodies_are_refused_by_name(fields: dict[str, object], said: str) -> None:
    reply = decide(Scoring(replace(INFO, max_model_len=512)), **fields)
    assert reply.status_code == 400
    assert said in reply.json()["error"]["message"]
