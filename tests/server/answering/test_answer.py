"""What happens between the first byte and the last: disconnects, failures, request ids."""

import asyncio
import errno
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx2
import pytest

from prolepsis.core.errors import ContextTooLong, DeadlineExceeded, EngineDead, EngineError, GrammarFailed
from prolepsis.core.messages import Abort
from tests.fake_client import INFO
from tests.server.conftest import served
from tests.server.fakes import FakeEngine
from tests.waiting import until, wait_for

Connect = Callable[[FakeEngine], httpx2.AsyncClient]

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}


@pytest.mark.parametrize("hold_after", [0, 2])
@pytest.mark.parametrize("stream", [True, False])
async def test_a_disconnect_aborts(stream: bool, hold_after: int) -> None:
    with served(FakeEngine(hold_after=hold_after)) as running:
        async with httpx2.AsyncClient(timeout=60) as http:
            body = CHAT | {"stream": stream}
            asking = asyncio.create_task(http.post(f"{running.url}/v1/chat/completions", json=body))
            await until(running.engine.held.is_set)
            asking.cancel()
            await asyncio.wait([asking])
        wait_for(lambda: running.engine.aborted)
        assert running.engine.aborted == [running.engine.requests[0].request_id]


def test_a_client_that_closes_its_stream_aborts() -> None:
    with served(FakeEngine(hold_after=2)) as running:
        stream = running.openai().chat.completions.create(**CHAT, stream=True)  # type: ignore[call-overload]
        next(iter(stream))
        assert running.engine.aborted == []
        stream.close()
        wait_for(lambda: running.engine.aborted)


def test_a_finished_request_is_not_aborted() -> None:
    with served(FakeEngine()) as running:
        list(running.openai().chat.completions.create(**CHAT, stream=True))  # type: ignore[call-overload]
        running.openai().chat.completions.create(**CHAT)  # type: ignore[call-overload]
        assert running.engine.aborted == []


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (ContextTooLong("needs 9 pages; the pool has 4", param="max_tokens"), 400, "context_length_exceeded"),
        (EngineDead("the engine thread ended"), 503, "engine_dead"),
        (OSError(errno.ENOSPC, "secret detail"), 503, "disk_full"),
        (ValueError("secret detail"), 500, "internal_error"),
    ],
)
async def test_errors_before_the_first_byte(
    client: Connect, error: Exception, status: int, code: str, stream: bool
) -> None:
    http = client(FakeEngine(error=error))
    response = await http.post("/v1/chat/completions", json=CHAT | {"stream": stream})
    assert response.status_code == status
    assert response.json()["error"]["code"] == code
    assert "secret" not in response.text
    assert "Traceback" not in response.text
    assert response.headers["x-request-id"]


@pytest.mark.parametrize(
    ("error", "status"), [(EngineError("a step failed"), 500), (DeadlineExceeded("deadline of 1 s passed"), 504)]
)
async def test_a_failed_request_without_stream(client: Connect, error: EngineError, status: int) -> None:
    response = await client(FakeEngine(fail_after=1, error=error)).post("/v1/chat/completions", json=CHAT)
    assert response.status_code == status
    assert response.json()["error"] == {
        "message": str(error),
        "type": "server_error",
        "param": None,
        "code": error.code,
    }


@pytest.mark.parametrize("stream", [False, True])
async def test_a_grammar_that_gives_up_is_its_clients_fault(client: Connect, stream: bool) -> None:
    engine = FakeEngine(fail_after=1, error=GrammarFailed("the grammar gave up after 3 tokens: nothing can follow"))
    form = {"response_format": {"type": "json_object"}, "stream": stream}
    response = await client(engine).post("/v1/chat/completions", json=CHAT | form)
    assert response.status_code == (200 if stream else 400)
    last = response.text.strip().rpartition("data: ")[2] if stream else response.text
    assert json.loads(last)["error"] == {
        "message": "the grammar gave up after 3 tokens: nothing can follow",
        "type": "invalid_request_error",
        "param": "response_format",
        "code": "grammar_failed",
    }


async def test_a_late_request_is_told_the_time_that_it_had_from_its_arrival(client: Connect) -> None:
    """The engine's limit is what the queue left: a request of 10 s that waited 9 s was told of 1 s."""
    engine = FakeEngine(error=DeadlineExceeded("not finished in 1.000 s"))
    response = await client(engine).post("/v1/chat/completions", json=CHAT, headers={"x-request-timeout-ms": "10000"})
    assert response.status_code == 504
    message = response.json()["error"]["message"]
    assert message.startswith("not finished in 1.000 s after it waited 0.")
    assert message.endswith("s; allowed: 10 s in all")


async def test_a_failure_after_the_first_byte_ends_the_stream_with_an_error(client: Connect) -> None:
    http = client(FakeEngine(fail_after=2, error=EngineError("a step failed")))
    response = await http.post("/v1/chat/completions", json=CHAT | {"stream": True})
    assert response.status_code == 200
    events = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert json.loads(events[-1])["error"]["message"] == "a step failed"
    assert json.loads(events[0])["choices"][0]["delta"]["content"]
    assert "[DONE]" not in response.text


async def test_an_abort_from_outside_is_an_error_to_the_client(client: Connect) -> None:
    engine = FakeEngine(hold_after=1)
    answer = asyncio.create_task(client(engine).post("/v1/chat/completions", json=CHAT))
    await asyncio.wait_for(engine.asked.wait(), 5)
    engine.send(Abort(engine.requests[0].request_id))
    response = await answer
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "request_aborted"


async def test_request_ids_go_out_as_they_came_in(client: Connect) -> None:
    http = client(FakeEngine())
    assert (await http.get("/v1/models", headers={"x-request-id": "abc-1"})).headers["x-request-id"] == "abc-1"
    for unfit in ("", "a b", "x" * 129):
        made = (await http.get("/v1/models", headers={"x-request-id": unfit})).headers["x-request-id"]
        assert made.startswith("req-")
    refused = await http.post("/v1/chat/completions", content=b"{", headers={"x-request-id": "abc-2"})
    assert refused.headers["x-request-id"] == "abc-2"


async def test_the_mode_in_effect_is_in_a_header(client: Connect) -> None:
    response = await client(FakeEngine()).post("/v1/chat/completions", json=CHAT)
    assert response.headers["x-spec-effective"] == "mode=on;reason=speculating;plan=3"


@pytest.mark.parametrize("exactness", ["strict", "normal"])
@pytest.mark.parametrize("stream", [False, True])
async def test_the_exactness_is_in_a_header(client: Connect, exactness: Any, stream: bool) -> None:
    engine = FakeEngine(info=replace(INFO, exactness=exactness))
    response = await client(engine).post("/v1/chat/completions", json=CHAT | {"stream": stream})
    assert response.headers["x-exactness"] == exactness


async def test_event_stream_headers_and_end(client: Connect) -> None:
    response = await client(FakeEngine()).post("/v1/chat/completions", json=CHAT | {"stream": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.text.endswith("data: [DONE]\n\n")


async def test_long_prompts_are_tokenised_off_the_event_loop(client: Connect) -> None:
    response = await client(FakeEngine()).post("/v1/completions", json={"model": "tiny", "prompt": "x" * 20000})
    assert response.json()["error"]["code"] == "context_length_exceeded"
    assert "20000" in response.json()["error"]["message"]
