"""Over real sockets: a request and its retries are generated and charged once."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest
from prometheus_client import CollectorRegistry
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Message

from prolepsis.control.web.caller import Caller
from prolepsis.control.web.errors import RequestRefused
from prolepsis.control.web.refusals import Refused
from prolepsis.core.config import LimitTerms, ServerConfig
from prolepsis.core.errors import DeadlineExceeded
from prolepsis.server.answering.idempotency import Answers, Idempotency, RecordedReply
from prolepsis.server.front.key_file import KeyFile, new_key
from prolepsis.server.front.keys import Keys
from prolepsis.server.preparing.bodies import CompletionBody
from tests.clock import Clock
from tests.server.admission.conftest import bearer
from tests.server.answering.test_stream import never
from tests.server.conftest import Served, served
from tests.server.fakes import FakeEngine
from tests.waiting import until

BODY = {"model": "tiny", "prompt": "Hi", "max_tokens": 9}
PATHS = {
    "/v1/completions": BODY,
    "/v1/chat/completions": {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9},
    "/v1/responses": {"model": "tiny", "input": "Hi", "max_output_tokens": 9},
}
ONE = {"idempotency-key": "one"}
LIMITED = ServerConfig(
    tokens_per_minute={"key": 1_000_000}, requests_per_minute={"key": 3}, limits=LimitTerms(header_timeout_s=60)
)


@asynccontextmanager
async def clients(running: Served, number: int = 1) -> AsyncIterator[httpx2.AsyncClient]:
    limits = httpx2.Limits(max_connections=number)
    async with httpx2.AsyncClient(base_url=running.url, timeout=60, limits=limits) as http:
        yield http


async def retried(http: httpx2.AsyncClient, body: Mapping[str, object]) -> httpx2.Response:
    """Return the reply to the first retry that the running attempt does not refuse."""
    while True:
        reply = await http.post("/v1/completions", json=body, headers=ONE)
        if reply.status_code != 409:
            return reply
        await asyncio.sleep(0.02)


def replayed(response: httpx2.Response) -> bool:
    return "idempotency-replayed" in response.headers


@pytest.mark.parametrize("stream", [False, True])
async def test_200_requests_at_once_with_one_key_are_one_generation(stream: bool) -> None:
    engine = FakeEngine(delay_s=0.1)
    body = {**BODY, "stream": stream}
    with served(engine, LIMITED) as running:
        async with clients(running, 200) as http:
            replies = await asyncio.gather(*(http.post("/v1/completions", json=body, headers=ONE) for _ in range(200)))
            retry = await retried(http, body)
            after = await http.post("/v1/completions", json=BODY)
    assert {reply.text for reply in replies if reply.status_code == 200} == {retry.text}
    refused = {reply.json()["error"]["code"] for reply in replies if reply.status_code != 200}
    assert refused <= {"idempotency_key_in_use"}
    assert replayed(retry)
    assert len(engine.requests) == 2, "one generation for all of them, and one for the request without a key"
    assert after.headers["x-ratelimit-remaining-requests"] == "1"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", PATHS)
async def test_a_retry_gets_the_finished_answer(path: str, stream: bool) -> None:
    engine = FakeEngine()
    body = {**PATHS[path], "stream": stream}
    with served(engine) as running:
        async with clients(running) as http:
            first, retry = [await http.post(path, json=body, headers=ONE) for _ in range(2)]
            other = await http.post(path, json=body, headers={"idempotency-key": "two"})
    assert not replayed(first)
    assert replayed(retry)
    assert not replayed(other)
    assert retry.content == first.content != other.content
    assert retry.headers["content-type"] == first.headers["content-type"]
    assert len(engine.requests) == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_lost_its_connection_gets_the_answer_later(stream: bool) -> None:
    engine = FakeEngine(delay_s=0.05)
    body = {**BODY, "max_tokens": 30, "stream": stream}
    with served(engine) as running:
        async with clients(running) as http:
            if stream:
                async with http.stream("POST", "/v1/completions", json=body, headers=ONE) as lost:
                    await anext(lost.aiter_bytes())
            else:
                lost_reply = asyncio.create_task(http.post("/v1/completions", json=body, headers=ONE))
                await until(engine.asked.is_set)
                lost_reply.cancel()
                await asyncio.wait([lost_reply])
            retry = await retried(http, body)
    assert replayed(retry)
    assert ("[DONE]" if stream else "done") in retry.text
    assert len(engine.requests) == 1
    assert engine.aborted == []


async def test_a_key_stands_for_one_request() -> None:
    engine = FakeEngine()
    with served(engine) as running:
        async with clients(running) as http:
            await http.post("/v1/completions", json=BODY, headers=ONE)
            for changed, headers in (({**BODY, "max_tokens": 8}, ONE), (BODY, {**ONE, "x-spec-mode": "off"})):
                refused = await http.post("/v1/completions", json=changed, headers=headers)
                error = refused.json()["error"]
                assert (refused.status_code, error["code"]) == (400, "idempotency_key_reused")
                assert error["param"] == "Idempotency-Key"
            unfit = await http.post("/v1/completions", json=BODY, headers={"idempotency-key": "a b"})
    assert (unfit.status_code, unfit.json()["error"]["param"]) == (400, "Idempotency-Key")
    assert len(engine.requests) == 1


@pytest.fixture
def tenants(tmp_path: Path) -> Iterator[tuple[Served, Callable[..., dict[str, str]]]]:
    file = KeyFile(tmp_path / "keys.json")

    def add(tenant: str, *models: str) -> dict[str, str]:
        record, key = new_key(tenant, models=models)
        file.add(record)
        return bearer(key)

    add("first")
    keys = [add("acme"), add("acme"), add("other"), add("acme", "large")]
    with served(FakeEngine(), keys=Keys(file)) as running:
        yield running, lambda i: {**keys[i], **ONE}


async def test_keys_are_apart_by_tenant(tenants: tuple[Served, Callable[..., dict[str, str]]]) -> None:
    running, headers = tenants
    async with clients(running) as http:
        replies = [await http.post("/v1/completions", json=BODY, headers=headers(i)) for i in range(4)]
    assert [reply.status_code for reply in replies] == [200, 200, 200, 403]
    assert [replayed(reply) for reply in replies[:3]] == [False, True, False]
    assert len(running.engine.requests) == 2


async def test_a_refusal_is_not_kept() -> None:
    engine = FakeEngine()
    with served(engine, ServerConfig(requests_per_minute={"key": 1})) as running:
        async with clients(running) as http:
            await http.post("/v1/completions", json=BODY)
            for stream in (False, True):
                body = {**BODY, "stream": stream}
                replies = [await http.post("/v1/completions", json=body, headers=ONE) for _ in range(2)]
                assert [(reply.status_code, replayed(reply)) for reply in replies] == [(429, False)] * 2
    assert len(engine.requests) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_a_failure_that_was_charged_is_kept(stream: bool) -> None:
    engine = FakeEngine(fail_after=2, error=DeadlineExceeded("too late"))
    body = {**BODY, "stream": stream}
    with served(engine) as running:
        async with clients(running) as http:
            first, retry = [await http.post("/v1/completions", json=body, headers=ONE) for _ in range(2)]
    assert first.status_code == retry.status_code == (200 if stream else 504)
    assert first.content == retry.content
    assert len(engine.requests) == 1


class Asked:
    """Keeps answers of a test's own, without a server."""

    def __init__(self, **settings: float) -> None:
        self.clock = Clock()
        self.num_attempts = 0
        self.most_bytes = 0
        self.kept = Idempotency(ServerConfig.model_validate(settings), CollectorRegistry(), self.clock)

    async def ask(
        self, key: str, tenant: str = "acme", *, size: int = 10, parts: int = 1, held: asyncio.Event | None = None
    ) -> bytes:
        """Return the answer, of so many parts of a size; it begins once `held` is set."""
        caller = Caller("k", tenant, frozenset({"client"}), "standard")
        headers = [(b"idempotency-key", key.encode())]
        scope = {"type": "http", "path": "/", "headers": headers, "state": {"caller": caller}}
        sent = bytearray()

        async def attend(_: Request) -> Response:
            self.num_attempts += 1
            if held is not None:
                await held.wait()
            return Response(b"x" * size) if parts == 1 else StreamingResponse(stream())

        async def stream() -> AsyncIterator[bytes]:
            for _ in range(parts):
                yield b"x" * size
                self.most_bytes = max(self.most_bytes, self.kept.answers.num_bytes)

        async def send(message: Message) -> None:
            sent.extend(message.get("body", b""))

        body = CompletionBody(model="tiny", prompt=["Hi"])
        response = await self.kept.once(Request(scope), body, attend)
        await response(scope, never, send)
        return bytes(sent)


async def test_a_retry_of_a_running_request_is_refused_with_a_wait_that_grows() -> None:
    asked, held = Asked(), asyncio.Event()
    first = asyncio.create_task(asked.ask("one", held=held))
    await asyncio.sleep(0)
    for passed_s, wait_s in ((0.25, "1"), (2.25, "3"), (1000.0, "60")):
        asked.clock.now += passed_s
        with pytest.raises(RequestRefused, match=f"'one' has been running for .* in {wait_s} s") as caught:
            await asked.ask("one")
        assert (caught.value.status, caught.value.headers["retry-after"]) == (409, wait_s)
        await asked.kept.tick()
    held.set()
    assert await first == await asked.ask("one")
    assert asked.num_attempts == 1


async def test_answers_are_kept_for_as_long_as_configured() -> None:
    asked = Asked(idempotency_ttl_s=60)
    for now, num_attempts in ((0, 1), (59, 1), (60, 2), (119, 2), (121, 3)):
        asked.clock.now = now
        await asked.ask("one")
        await asked.kept.tick()
        assert asked.num_attempts == num_attempts, now


async def test_one_tenant_that_fills_the_memory_is_refused_and_no_other() -> None:
    asked = Asked(idempotency_bytes=20_000, idempotency_ttl_s=60)
    for i in range(4):
        await asked.ask(str(i), size=4_000)
    with pytest.raises(Refused) as caught:
        await asked.ask("more", size=4_000)
    assert (caught.value.status, caught.value.headers["retry-after"]) == (429, "60")
    await asked.ask("0", size=4_000)
    await asked.ask("0", "other")
    assert asked.num_attempts == 5
    asked.clock.now += 60
    await asked.kept.tick()
    await asked.ask("more")


class NotVisited(Answers):
    def __iter__(self) -> Iterator[RecordedReply]:
        raise AssertionError("all answers are visited for one request")


async def test_room_for_a_new_key_is_found_without_a_visit_to_all_answers() -> None:
    asked = Asked(idempotency_bytes=20_000)
    asked.kept.answers = NotVisited(20_000)
    await asked.ask("first", size=17_000)
    await asked.ask("second")
    with pytest.raises(Refused):
        await asked.ask("third")
    assert asked.kept.answers.num_bytes > 20_000


async def test_an_answer_that_outgrows_its_room_reaches_its_client_and_only_its_key_is_kept() -> None:
    asked = Asked(idempotency_bytes=20_000, idempotency_ttl_s=60)
    assert len(await asked.ask("one", size=10_000, parts=40)) == 400_000
    assert asked.most_bytes < 32_000
    with pytest.raises(RequestRefused, match="outgrew") as caught:
        await asked.ask("one")
    assert (caught.value.status, caught.value.code) == (409, "idempotent_answer_not_kept")
    assert caught.value.headers["x-should-retry"] == "false"
    assert asked.num_attempts == 1, "it was charged once"
    assert asked.kept.answers.num_bytes < 3_000
    assert await asked.ask("two") == b"x" * 10


async def test_the_total_is_that_of_the_answers_that_are_kept() -> None:
    asked = Asked(idempotency_ttl_s=60)
    for now, (tenant, key, size) in enumerate(
        [("a", "one", 10), ("a", "two", 5_000), ("b", "one", 70), ("c", "one", 1)] * 2
    ):
        asked.clock.now = 20.0 * now
        await asked.ask(key, tenant, size=size)
        if now == 5:
            await asked.kept.tick()
        found = list(asked.kept.answers)
        assert asked.kept.answers.num_bytes == sum(answer.num_bytes for answer in found)
        for owner in "abc":
            of_owner = sum(answer.num_bytes for answer in found if answer.tenant == owner)
            assert asked.kept.answers.bytes_of(owner) == of_owner
    asked.clock.now += 60
    await asked.kept.tick()
    assert (asked.kept.answers.num_bytes, list(asked.kept.answers)) == (0, [])
