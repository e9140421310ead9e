"""POST /v1/verify/...: the events of an answer, the drafts that are taken for it, and those that are not."""

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from prolepsis.control.web.caller import Caller
from prolepsis.control.web.errors import RequestRefused
from prolepsis.core.client_draft import ClientDraft
from prolepsis.core.config import ServerConfig
from prolepsis.core.errors import EngineError
from prolepsis.core.events import Event
from prolepsis.core.messages import Control, OfferDraft
from prolepsis.core.requests import GenerateRequest
from prolepsis.server.output.policy import ALLOW
from prolepsis.server.verify.streams import VerifyStream, VerifyStreams
from tests.fake_client import INFO, FakeEngineClient, answer
from tests.fakes import request
from tests.server.conftest import Served, served
from tests.server.fakes import FakeEngine
from tests.server.output.policies import Says, loaded

WITH_CLIENT = replace(INFO, proposers=("suffix", "client"))
BODY: dict[str, Any] = {"model": "tiny", "prompt": "Hi", "max_tokens": 40, "seed": 7}
CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "seed": 7}


class Waiting(FakeEngine):
    """Says nothing before it is offered a draft."""

    def __init__(self, text: str, step: int = 3) -> None:
        super().__init__(text, step=step, info=WITH_CLIENT)
        self._offered = asyncio.Event()

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Event, None]:
        await self._offered.wait()
        async for event in super().generate(request):
            yield event

    def send(self, control: Control) -> None:
        super().send(control)
        if isinstance(control, OfferDraft):
            self._offered.set()


@contextmanager
def opened(running: Served, body: dict[str, Any], path: str = "completions") -> Iterator[Iterator[dict[str, Any]]]:
    """Yield the events of an answer while it runs."""
    with httpx2.stream("POST", f"{running.url}/v1/verify/{path}", json=body, timeout=30) as response:
        assert response.status_code == 200, response.read()
        yield (json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: "))


def send(running: Served, stream_id: str, position: int, *tokens: int) -> httpx2.Response:
    draft = {"position": position, "token_ids": tokens}
    return httpx2.post(f"{running.url}/v1/verify/{stream_id}/drafts", json=draft)


def test_the_events_of_an_answer_that_its_client_drafts() -> None:
    with served(Waiting("abcdefgh")) as running, opened(running, BODY) as events:
        started = next(events)
        assert started["type"] == "started"
        assert (started["prompt_token_ids"], started["prompt_token_strs"]) == ([72, 105], ["H", "i"])
        assert started["drafts"] == {"taken": True, "reason": None, "max_tokens": 64}
        assert started["seed"] == 7
        reply = send(running, started["id"], 0, *b"abcdX")
        assert reply.json() == {"taken": True, "reason": None}
        rest = list(events)
    shown = [(one["type"], one["position"], one["text"], one["num_accepted"]) for one in rest[:-1]]
    assert shown == [("tokens", 0, "abc", 3), ("corrected", 3, "def", 1), ("tokens", 6, "gh", 0)]
    assert rest[0]["token_ids"] == [*b"abc"]
    assert rest[0]["token_strs"] == ["a", "b", "c"]
    done = rest[-1]
    assert (done["type"], done["finish_reason"], done["usage"]["completion_tokens"]) == ("done", "stop", 9)
    assert (done["drafts"]["num_received"], done["drafts"]["num_late"]) == (1, 0)
    assert running.engine.offered == [(started["id"], ClientDraft(0, tuple(b"abcdX")))] * 2, "again once it runs"


@pytest.mark.parametrize(("path", "body"), [("completions", BODY), ("chat/completions", CHAT)])
def test_without_drafts_the_text_is_that_of_the_ordinary_route(path: str, body: dict[str, Any]) -> None:
    with served(FakeEngine(info=WITH_CLIENT)) as running:
        (choice,) = httpx2.post(f"{running.url}/v1/{path}", json=body).json()["choices"]
        with opened(running, body, path) as events:
            found = list(events)
    assert [one["type"] for one in found[:1] + found[-1:]] == ["started", "done"]
    text = "".join(one["text"] for one in found[1:-1])
    assert text == (choice["text"] if path == "completions" else choice["message"]["content"])
    assert found[-1]["finish_reason"] == choice["finish_reason"]


def test_drafts_are_not_taken_late_or_ahead_and_wrong_ones_are_refused_by_name() -> None:
    with served(FakeEngine("abcdefgh", hold_after=2, info=WITH_CLIENT)) as running, opened(running, BODY) as events:
        stream_id = next(events)["id"]
        assert [next(events)["position"] for _ in range(2)] == [0, 3]
        assert send(running, stream_id, 3, *b"def").json() == {"taken": False, "reason": "late"}
        assert send(running, stream_id, 3, *b"xefg").json() == {"taken": False, "reason": "late"}
        assert send(running, stream_id, 7, *b"h").json() == {"taken": False, "reason": "ahead"}
        for tokens, named in (
            ((257,), "token_ids"),
            ((), "token_ids"),
            ((1,) * 65, "token_ids"),
            ((-1,), "token_ids[0]"),
        ):
            reply = send(running, stream_id, 6, *tokens)
            assert (reply.status_code, reply.json()["error"]["param"]) == (400, named)
        assert send(running, "cmpl-unknown", 0, 1).status_code == 404
        assert not running.engine.offered
        assert send(running, stream_id, 6, *b"gh").json()["taken"]
    assert running.engine.offered == [(stream_id, ClientDraft(6, tuple(b"gh")))]


def test_a_client_that_leaves_ends_its_stream() -> None:
    with served(FakeEngine("abcdefgh", hold_after=1, info=WITH_CLIENT)) as running:
        with opened(running, BODY) as events:
            stream_id = next(events)["id"]
            next(events)
        while send(running, stream_id, 3, *b"d").status_code != 404:
            pass
        assert running.engine.aborted == [stream_id]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"speculation": {"mode": "off"}}, "requested_off"),
        ({"speculation": {"proposer": "suffix"}}, "not_allowed"),
        ({}, "not_loaded"),
        ({}, "output_policies"),
        ({}, "killed"),
    ],
)
def test_where_drafts_are_not_taken_the_answer_says_so(given: dict[str, Any], reason: str, tmp_path: Path) -> None:
    info = INFO if reason == "not_loaded" else WITH_CLIENT
    config = ServerConfig(controls_file=tmp_path / "controls.json")
    output = [loaded(Says(lambda pending, ended: ALLOW))] if reason == "output_policies" else []
    with served(FakeEngine("abcdefgh", hold_after=1, info=info), config, output=output) as running:
        if reason == "killed":
            killed = {"on": True, "scope": "proposer:client", "reason": "a test"}
            assert httpx2.put(f"{running.url}/admin/kill", json=killed).status_code == 200
        with opened(running, BODY | given) as events:
            started = next(events)
            assert started["drafts"] == {"taken": False, "reason": reason, "max_tokens": 64}
            assert send(running, started["id"], 0, *b"abc").json() == {"taken": False, "reason": reason}
    assert not running.engine.offered


@pytest.mark.parametrize(
    ("path", "given", "param"),
    [
        ("completions", {"n": 2}, "n"),
        ("completions", {"prompt": ["a", "b"]}, "prompt"),
        ("completions", {"logprobs": 2}, "logprobs"),
        ("completions", {"stream": False}, "stream"),
        ("completions", {"stream": True, "stream_options": {"include_usage": True}}, "stream_options"),
        ("completions", {"service_tier": "flex"}, "service_tier"),
        ("chat/completions", {"logprobs": True}, "logprobs"),
        ("chat/completions", {"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
    ],
)
def test_unsupported_parameters_are_refused_by_name(
    shared: Served, path: str, given: dict[str, Any], param: str
) -> None:
    body = (BODY if path == "completions" else CHAT) | given
    reply = httpx2.post(f"{shared.url}/v1/verify/{path}", json=body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)
    assert "allowed" in reply.json()["error"]["message"]


def test_what_refuses_a_request_before_it_runs_is_the_status() -> None:
    config = ServerConfig(tokens_per_minute={"tenant": 100})
    with served(FakeEngine("abcdefgh", hold_after=1, info=WITH_CLIENT), config) as running:
        url = f"{running.url}/v1/verify/completions"
        with opened(running, BODY | {"max_tokens": 90}) as events:
            assert next(events)["type"] == "started"
            reply = httpx2.post(url, json=BODY)
            assert (reply.status_code, reply.json()["error"]["code"]) == (429, "rate_limit_exceeded")
            assert "retry-after" in reply.headers


def test_a_request_that_waits_in_the_queue_for_too_long_is_a_504() -> None:
    config = ServerConfig(max_in_engine=1)
    engine = FakeEngine("abcdefgh", hold_after=1, info=WITH_CLIENT)
    with served(engine, config) as running, opened(running, BODY) as events:
        assert next(events)["type"] == "started"
        late = {"x-request-timeout-ms": "50"}
        reply = httpx2.post(f"{running.url}/v1/verify/completions", json=BODY, headers=late)
        assert (reply.status_code, reply.json()["error"]["code"]) == (504, "deadline_exceeded")


def test_an_answer_that_fails_ends_with_one_error() -> None:
    with served(FakeEngine(fail_after=1, error=EngineError("boom"))) as running, opened(running, BODY) as events:
        found = list(events)
    assert [one.get("type", "error") for one in found] == ["started", "tokens", "error"]


CALLER = Caller("key", "acme", frozenset({"client"}), "standard")


ENGINE = FakeEngineClient(answer([[1]]))


def stream() -> VerifyStream:
    ENGINE.offered.clear()
    return VerifyStream(request("r", [1]), CALLER, ENGINE, lambda: None)


def test_tokens_are_compared_with_the_draft() -> None:
    one = stream()
    assert one.send([1, 2]) == (0, False), "without a draft nothing is accepted or corrected"
    assert one.take(ClientDraft(1, (2, 3, 4, 5))) is None
    assert one.send([3]) == (1, False)
    assert one.send([4, 9, 9]) == (1, True)
    assert one.send([5]) == (0, False), "a draft is corrected once"
    assert one.take(ClientDraft(7, (7,))) is None
    assert one.send([7, 8]) == (1, False), "a token behind the draft's end corrects nothing"


def test_drafts_that_are_late_or_ahead_are_not_offered() -> None:
    one = stream()
    one.send([1, 2, 3])
    assert one.take(ClientDraft(1, (2, 3))) == "late", "passed"
    assert one.take(ClientDraft(1, (2, 9, 9))) == "late", "left"
    assert one.take(ClientDraft(4, (5,))) == "ahead"
    assert not ENGINE.offered
    assert one.take(ClientDraft(2, (3, 4))) is None
    assert ENGINE.offered == [("r", ClientDraft(2, (3, 4)))]
    assert (one.num_drafts, one.num_late) == (4, 2)


@pytest.mark.parametrize("caller", [Caller("other", "acme", CALLER.roles, ""), Caller("key", "else", CALLER.roles, "")])
def test_a_stream_is_found_by_its_own_key_while_it_is_open(caller: Caller) -> None:
    streams, one = VerifyStreams(), stream()
    with streams.opened(one):
        assert streams.find("r", CALLER) is one
        with pytest.raises(RequestRefused, match="No stream 'r' of this key"):
            streams.find("r", caller)
    with pytest.raises(RequestRefused) as refused:
        streams.find("r", CALLER)
    assert (refused.value.status, refused.value.code) == (404, "stream_not_found")
