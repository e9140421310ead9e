"""Streams whose first token is late: they begin at once, are never silent for long, and end once."""

import asyncio
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import pytest
from starlette.types import Message

from prolepsis.core.config import LimitTerms, ServerConfig
from prolepsis.core.engine_client import PromptProgress
from prolepsis.core.errors import DeadlineExceeded
from prolepsis.core.events import Event, Failed
from prolepsis.core.requests import GenerateRequest
from prolepsis.core.stats import RequestStats
from prolepsis.server.answering.stream import OPENS_AFTER_S
from tests.fake_client import FakeEngineClient
from tests.server.conftest import steady
from tests.server.fakes import FakeEngine
from tests.virtual_time import virtual_time
from tests.world.site import Site

READING_S = 35.0
HI = [{"role": "user", "content": "Hi"}]
CHAT, TEXTS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
BODIES: Mapping[str, dict[str, Any]] = {
    CHAT: {"messages": HI, "n": 2},
    TEXTS: {"prompt": "Hi"},
    RESPONSES: {"input": "Hi"},
    "/v1/messages": {"messages": HI, "max_tokens": 9},
    "/api/chat": {"messages": HI},
    "/api/generate": {"prompt": "Hi"},
    "/completion": {"prompt": "Hi"},
    "/v1/verify/completions": {"prompt": "Hi"},
}
every = pytest.mark.parametrize("path", BODIES)


@dataclass
class Sent:
    """What a client got, and when (seconds)."""

    status: int = 0
    parts: list[tuple[float, str]] = field(default_factory=list)
    begun_at: float = 0.0
    is_whole: bool = False

    @property
    def text(self) -> str:
        return "".join(text for _, text in self.parts)

    @property
    def events(self) -> list[dict[str, Any]]:
        lines = [line.removeprefix("data: ") for line in self.text.splitlines()]
        return [json.loads(line) for line in lines if line.startswith("{")]

    @property
    def longest_silence_s(self) -> float:
        times = [at for at, _ in self.parts]
        return max(later - at for at, later in pairwise(times))


class Server(Site):
    """An application whose requests are made by hand, in one event loop with its engine."""

    def __init__(self, engine: FakeEngineClient, **config: Any) -> None:
        super().__init__(engine, steady(ServerConfig(limits=LimitTerms(start_drafts=0), **config)))

    async def begin(
        self, path: str, more: Mapping[str, Any] | None = None, *, leaves_s: float = 1e6, **headers: str
    ) -> Sent:
        """Ask, and leave after `leaves_s`."""
        body = json.dumps({"model": "tiny", "stream": True, **BODIES[path], **(more or {})}).encode()
        given = {"host": "localhost", "content-type": "application/json", "content-length": str(len(body)), **headers}
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "client": ("127.0.0.1", 1),
            "server": ("localhost", 80),
            "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in given.items()],
        }
        sent, is_read, now = Sent(), False, asyncio.get_running_loop().time
        came = now()

        async def receive() -> Message:
            nonlocal is_read
            if is_read:
                await asyncio.sleep(leaves_s)
                return {"type": "http.disconnect"}
            is_read = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Message) -> None:
            assert not sent.is_whole, "nothing follows the end"
            if message["type"] == "http.response.start":
                sent.status, sent.begun_at = message["status"], now() - came
            else:
                sent.parts.append((now() - came, message["body"].decode()))
                sent.is_whole = not message.get("more_body", False)

        await self.app(scope, receive, send)
        return sent

    async def reads(self, num_tokens: int) -> None:
        """Let the engine say that it has read so much of the first request's prompt."""
        await self.engine.asked.wait()
        progress = PromptProgress(self.engine.requests[0].request_id, num_tokens, 2, 7274)
        self.engine.reported = replace(self.engine.reported, reading=(progress,))
        await self.app.state.admission.tick()


def late() -> FakeEngine:
    return FakeEngine("Hello", step=9, delay_s=READING_S)


def fails(request: GenerateRequest) -> Iterable[Event | float]:
    yield READING_S
    yield Failed(request.request_id, DeadlineExceeded("not finished in 35 s"), RequestStats())


@every
@virtual_time
async def test_a_stream_begins_before_its_first_token_and_is_never_silent_for_long(path: str) -> None:
    """It sent nothing, not even its headers, until the prompt was read; proxies and clients gave up meanwhile."""
    sent = await Server(late()).begin(path)
    assert (sent.status, sent.is_whole) == (200, True)
    assert sent.begun_at == pytest.approx(0 if "verify" in path else OPENS_AFTER_S)
    assert sent.longest_silence_s <= 10.001
    quick = await Server(FakeEngine("Hello", step=9)).begin(path)
    assert sent.text.count("Hello") == quick.text.count("Hello") > 0, "nothing but pings is added"


OPENINGS: Mapping[str, tuple[str, str]] = {
    CHAT: ('"delta":{"role":"assistant","content":""}', ": ping\n\n"),
    TEXTS: (": ping\n\n", ": ping\n\n"),
    RESPONSES: ("event: response.created\n", "event: response.in_progress\n"),
    "/v1/messages": ("event: message_start\n", 'event: ping\ndata: {"type":"ping"}\n\n'),
    "/api/chat": ('"message":{"role":"assistant","content":""},"done":false}\n',) * 2,
    "/api/generate": ('"response":"","done":false}\n',) * 2,
    "/completion": (": ping\n\n", ": ping\n\n"),
}


@pytest.mark.parametrize("path", OPENINGS)
@virtual_time
async def test_each_dialect_begins_and_waits_in_its_own_way(path: str) -> None:
    sent = await Server(late()).begin(path)
    assert OPENINGS[path][0] in sent.parts[0][1]
    assert [OPENINGS[path][1] in text for _, text in sent.parts[1:4]] == [True] * 3


@virtual_time
async def test_what_begins_a_stream_is_said_once() -> None:
    """Clients join the strings of deltas, the role too; events of responses are numbered without a gap."""
    chat, messages, response = [await Server(late()).begin(path) for path in (CHAT, "/v1/messages", RESPONSES)]
    assert chat.text.count('"role"') == 2, "of two choices"
    assert messages.text.count("event: message_start") == 1
    assert response.text.count("event: response.created") == 1
    assert [event["sequence_number"] for event in response.events] == list(range(len(response.events)))


@virtual_time
async def test_a_stream_that_begins_early_echoes_once() -> None:
    said = {"messages": [{"role": "assistant", "content": "Well, "}], "echo": True}
    sent = await Server(late()).begin(CHAT, said)
    assert sent.text.count("Well, ") == 2, "of two choices"
    assert sent.text.rindex("Well, ") < sent.text.index("Hello")


ERRORS: Mapping[str, tuple[str, ...]] = {
    CHAT: ("error", "code"),
    TEXTS: ("error", "code"),
    RESPONSES: ("response", "error", "code"),
    "/v1/messages": ("error", "type"),
    "/api/chat": ("error",),
    "/completion": ("error", "code"),
}
CODES = {RESPONSES: "server_error", "/v1/messages": "timeout_error", "/api/chat": "not finished in 35 s"}


@pytest.mark.parametrize("path", ERRORS)
@virtual_time
async def test_a_failure_behind_the_status_is_the_dialects_last_event(path: str) -> None:
    server = Server(FakeEngineClient(fails))
    sent = await server.begin(path)
    assert (sent.status, sent.is_whole, "[DONE]" in sent.text) == (200, True, False)
    found: Any = sent.events[-1]
    for name in ERRORS[path]:
        found = found[name]
    assert found == CODES.get(path, "deadline_exceeded")
    failures = [event for event in sent.events if (event.get("response") or event).get("error")]
    assert failures == sent.events[-1:], "it is the only one"
    assert server.sample("requests_total", route=path, tier="standard", outcome="failed") == 1


@virtual_time
async def test_pings_can_be_turned_off_and_streams_begin_all_the_same() -> None:
    sent = await Server(late(), stream_ping_s=0).begin(CHAT)
    assert sent.begun_at == pytest.approx(OPENS_AFTER_S)
    assert "ping" not in sent.text


@virtual_time
async def test_pings_also_break_silences_between_tokens() -> None:
    sent = await Server(FakeEngine("Hello", step=2, delay_s=READING_S)).begin(TEXTS)
    assert sent.text.count(": ping") == 1 + 3 * 3
    assert sent.longest_silence_s <= 10.001


SHOWN: Mapping[str, tuple[dict[str, Any], str]] = {
    CHAT: ({"speculation": {"metrics": True}}, '"choices":[],"speculation":{"prompt":{"read":4096,"of":7274}}'),
    "/completion": ({"return_progress": True}, '"prompt_progress":{"total":7274,"cache":2,"processed":4096,'),
    TEXTS: ({}, ": reading the prompt, 4,096 of 7,274 tokens\n\n"),
}


@pytest.mark.parametrize("path", SHOWN)
@virtual_time
async def test_the_progress_of_a_prompt_is_shown_where_it_is_asked_for(path: str) -> None:
    more, shown = SHOWN[path]
    server = Server(late())
    asking = asyncio.ensure_future(server.begin(path, more))
    await server.reads(1024)
    await asyncio.sleep(5)
    await server.reads(4096)
    sent = await asking
    assert next(at for at, text in sent.parts if shown in text) <= (11 if path == TEXTS else 7)
    unasked = await Server(late()).begin(path)
    assert "prompt_progress" not in unasked.text
    assert '"speculation"' not in unasked.text


@pytest.mark.parametrize("path", [CHAT, RESPONSES, "/api/chat"])
@virtual_time
async def test_the_answer_that_is_kept_for_a_retry_holds_no_pings(path: str) -> None:
    server = Server(late())
    first, retry = [await server.begin(path, idempotency_key="one") for _ in range(2)]
    assert len(server.engine.requests) == 1
    assert retry.status == 200
    pings = [event for event in first.events if event not in retry.events]
    assert len(pings) == {CHAT: 0, RESPONSES: 3, "/api/chat": 4}[path]
    assert "ping" not in retry.text


@virtual_time
async def test_a_failure_that_was_not_charged_is_not_kept_for_a_retry() -> None:
    server = Server(FakeEngineClient(lambda request: [READING_S, DeadlineExceeded("late")]))
    for _ in range(2):
        await server.begin(CHAT, idempotency_key="one")
    assert len(server.engine.requests) == 2


@every
@virtual_time
async def test_a_client_that_leaves_while_its_prompt_is_read_ends_its_request(path: str) -> None:
    server = Server(late())
    sent = await server.begin(path, leaves_s=5.0)
    assert not sent.is_whole
    assert server.engine.aborted == [server.engine.requests[0].request_id]
    assert asyncio.get_running_loop().time() == pytest.approx(5.0)


@virtual_time
async def test_a_stream_in_the_queue_begins_and_leaves_with_its_client() -> None:
    server = Server(late(), max_in_engine=1)
    first = asyncio.ensure_future(server.begin(TEXTS))
    await server.engine.asked.wait()
    queued = await server.begin(TEXTS, leaves_s=15.0)
    assert [(round(at, 2), text) for at, text in queued.parts] == [(OPENS_AFTER_S, ": ping\n\n"), (10.25, ": ping\n\n")]
    assert server.app.state.admission.num_waiting == 0
    await first
    assert len(server.engine.requests) == 1
