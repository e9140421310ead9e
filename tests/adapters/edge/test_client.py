"""A client that drafts, against a real engine over the table model: the same answers, seen earlier."""

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import httpx2
import pytest

from prolepsis.adapters.edge.client import EdgeClient, Shown
from prolepsis.engine.drafting.draft import Draft, chain
from prolepsis.engine.drafting.proposer import Proposer, SequenceView
from prolepsis.engine.drafting.proposers.expected_text import ClientProposer
from prolepsis.engine.drafting.proposers.suffix import SuffixProposer
from prolepsis.remote.verify_events import ServerError
from tests.fakes import VOCAB, EngineSetup
from tests.load.server import TableServer, serving
from tests.loopback import Reply, Request
from tests.loopback import serving as answering

SEEDS = range(8)


class Expects(Proposer):
    """Expects a given answer, each `period`-th token of it wrong; 0: none is."""

    name = "expects"

    def __init__(self, answer: Sequence[int], period: int) -> None:
        self.answer = [(t + 1) % VOCAB if period and i % period == period - 1 else t for i, t in enumerate(answer)]

    def propose(self, sequences: Sequence[SequenceView], limits: Sequence[int]) -> list[Draft | None]:
        (sequence,), (limit,) = sequences, limits
        rest = tuple(self.answer[len(sequence.tokens) - sequence.num_prompt_tokens :][:limit])
        return [chain(rest, self.name) if rest else None]


@pytest.fixture(scope="module")
def server() -> Iterator[TableServer]:
    setup = EngineSetup(max_model_len=512, num_pages=256, proposers=(SuffixProposer(1 << 16), ClientProposer()))
    with serving(TableServer(setup=setup)) as running:
        yield running
        running.check_ended_once()


def body(seed: int) -> dict[str, Any]:
    return {
        "model": "table",
        "prompt": [3, 1, 4, 1, 5, 9, 2, 6],
        "max_tokens": 60,
        "temperature": 0.9 if seed else 0.0,
        "ignore_eos": seed % 2 == 0,
        "stop": ["abc"],
        "seed": seed,
    }


def plain(url: str, seed: int) -> tuple[str, list[int], str]:
    """Return what the ordinary route answers without speculation."""
    asked = body(seed) | {"speculation": {"mode": "off"}, "return_token_ids": True}
    (choice,) = httpx2.post(f"{url}/v1/completions", json=asked).json()["choices"]
    return choice["text"], choice["token_ids"], choice["finish_reason"]


@pytest.mark.parametrize("period", [0, 4, 1], ids=["right", "every fourth wrong", "all wrong"])
async def test_answers_are_those_of_the_ordinary_route(server: TableServer, period: int) -> None:
    for seed in SEEDS:
        text, token_ids, reason = plain(server.url, seed)
        shown: list[Shown] = []
        async with EdgeClient(server.url, proposer=Expects(token_ids, period)) as client:
            answer = await client.completion(body(seed), shown.append)
        assert (answer.text, list(answer.token_ids), answer.finish_reason) == (text, token_ids, reason), seed
        assert shown[0].text == ""
        assert shown[-1] == Shown(text, "", corrected=False)
        assert all(later.text.startswith(earlier.text) for earlier, later in pairwise(shown))
        assert answer.refusal is None
        counts = answer.counts
        assert (period != 0) >= (counts.num_corrections > 0)
        assert any(one.corrected for one in shown) == (counts.num_corrections > 0)


async def test_a_conversation_is_answered_as_by_the_ordinary_route(server: TableServer) -> None:
    asked = {"model": "table", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 30, "seed": 5}
    async with httpx2.AsyncClient() as http:
        reply = await http.post(f"{server.url}/v1/chat/completions", json=asked)
    expected = reply.json()["choices"][0]
    async with EdgeClient(server.url) as client:
        answer = await client.chat(asked)
    assert (answer.text, answer.finish_reason) == (expected["message"]["content"], expected["finish_reason"])


async def test_garbage_of_one_client_changes_nothing_for_others(server: TableServer) -> None:
    expected = {seed: plain(server.url, seed)[0] for seed in SEEDS}

    async def ask(seed: int, period: int) -> str:
        _, token_ids, _ = plain(server.url, seed)
        async with EdgeClient(server.url, proposer=Expects(token_ids, period)) as client:
            return (await client.completion(body(seed))).text

    texts = await asyncio.gather(*(ask(seed, seed % 2) for seed in SEEDS))
    assert dict(zip(SEEDS, texts, strict=True)) == expected


async def test_with_speculation_off_the_client_learns_so_and_gets_the_plain_stream(server: TableServer) -> None:
    text, token_ids, _ = plain(server.url, 3)
    async with EdgeClient(server.url, proposer=Expects(token_ids, 0)) as client:
        answer = await client.completion(body(3) | {"speculation": {"mode": "off"}})
    assert (answer.text, answer.refusal, answer.num_drafts_sent) == (text, "requested_off", 0)
    assert answer.first_provisional_s is None
    assert answer.document["effective"]["reason"] == "requested_off"


async def test_refusals_are_raised_with_status_and_code(server: TableServer) -> None:
    async with EdgeClient(server.url) as client:
        with pytest.raises(ServerError, match="n is 2; allowed: 1") as refused:
            await client.completion(body(1) | {"n": 2})
    assert (refused.value.status, refused.value.code) == (400, "invalid_value")


@pytest.mark.parametrize("said", ["<h1>Bad gateway</h1>", '{"detail": "Bad gateway"}', '"Bad gateway"'])
async def test_refusals_of_a_gateway_are_raised_too(said: str) -> None:
    with answering(lambda _: Reply(502, said.encode())) as url:
        async with EdgeClient(url) as client:
            with pytest.raises(ServerError, match="502") as refused:
                await client.completion({})
    assert (refused.value.status, refused.value.code) == (502, "refused")


STARTED = {
    "type": "started",
    "id": "r",
    "model": "m",
    "system_fingerprint": "f",
    "seed": 1,
    "prompt_token_ids": [1],
    "prompt_token_strs": ["a"],
    "drafts": {"taken": True, "reason": None, "max_tokens": 64},
}
FAILED = {"error": {"message": "the engine ended", "type": "server_error", "param": None, "code": "engine_dead"}}


@pytest.mark.parametrize(
    ("last", "code"),
    [(FAILED, "engine_dead"), (None, "stream_cut"), ({"type": "tokens", "position": "x"}, "invalid_event")],
    ids=["an error", "nothing more", "an event that is none"],
)
async def test_an_answer_that_fails_raises(last: dict[str, Any] | None, code: str) -> None:
    def answer(request: Request) -> Reply:
        events = [event for event in (STARTED, last) if event is not None]
        return Reply(body="".join(f": a comment\ndata: {json.dumps(event)}\n\n" for event in events).encode())

    with answering(answer) as url:
        async with EdgeClient(url) as client:
            with pytest.raises(ServerError) as failed:
                await client.completion({})
    assert (failed.value.code, failed.value.status) == (code, None)


async def test_a_server_that_falls_silent_is_not_waited_for_without_end() -> None:
    over = threading.Event()

    def answer(request: Request) -> Reply:
        over.wait(60)
        return Reply()

    with answering(answer) as url:
        async with EdgeClient(url, silence_s=0.1) as client:
            with pytest.raises(httpx2.ReadTimeout):
                await asyncio.wait_for(client.completion({}), 30)
        over.set()


def test_it_runs_without_torch() -> None:
    program = (
        "import sys, prolepsis.adapters.edge.client; print(sorted({'torch', 'numpy', 'fastapi'} & sys.modules.keys()))"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"
