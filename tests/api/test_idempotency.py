"""Over real sockets: a request and its retries are generated and charged once."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from prometheus_client import CollectorRegistry
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from prolepsis.api.auth.key_file import KeyFile, new_key
from prolepsis.api.auth.keys import Keys
from prolepsis.api.idempotency import UNREAD_BYTES, Answer, Answers, Idempotency
from prolepsis.api.openai.bodies import CompletionBody
from prolepsis.core.config import ServerConfig
from prolepsis.core.errors import DeadlineExceeded
from prolepsis.web.caller import Caller
from prolepsis.web.errors import RequestRefused
from prolepsis.web.refusals import Refused
from tests.api.admission.conftest import bearer
from tests.api.conftest import Served, served
from tests.api.fakes import FakeEngine
from tests.api.test_stream import never
from tests.clock import Clock
from tests.waiting import until

BODY = {"model": "tiny", "prompt": "Hi", "max_tokens": 9}
PATHS = {
    "/v1/completions": BODY,
    "/v1/chat/completions": {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9},
    "/v1/responses": {"model": "tiny", "input": "Hi", "max_output_tokens": 9},
}
ONE = {"idempotency-key": "one"}
LIMITED = ServerConfig(tokens_per_minute={"key": 1_000_000}, requests_per_minute={"key": 3}, header_timeout_s=60)


@asynccontextmanager
async def clients(running: Served, number: int = 1) -> AsyncIterator[httpx.AsyncClient]:
    limits = httpx.Limits(max_connections=number)
    async with httpx.AsyncClient(base_url=running.url, timeout=60, limits=limits) as http:
        yield http


def replayed(response: httpx.Response) -> bool:
    return "idempotency-replayed" in response.headers


@pytest.mark.parametrize("stream", [False, True])
async def test_200_requests_at_once_with_one_key_are_one_generation(stream: bool) -> None:
    engine = FakeEngine(delay_s=0.1)
    with served(engine, LIMITED) as running:
        async with clients(running, 200) as http:
            body = {**BODY, "stream": stream}
            all_replies = await asyncio.gather(
                *(http.post("/v1/completions", json=body, headers=ONE) for _ in range(200))
            )
            after = await http.post("/v1/completions", json=BODY)
    assert {(reply.status_code, reply.text) for reply in all_replies} == {(200, all_replies[0].text)}
    assert sum(map(replayed, all_replies)) == 199
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
            retry = await http.post("/v1/completions", json=body, headers=ONE)
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
        self,
        key: str,
        tenant: str = "acme",
        *,
        size: int = 10,
        parts: int = 1,
        held: asyncio.Event | None = None,
        reading: asyncio.Event | None = None,
    ) -> bytes:
        """Return the answer, of so many parts of a size, as far as it came; it begins once `held` is set.

        The client takes nothing before `reading` is set.
        """
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
                await asyncio.sleep(0)
                await asyncio.sleep(0)

        async def send(message: object) -> None:
            assert isinstance(message, dict)
            if reading is not None:
                await reading.wait()
            sent.extend(message.get("body", b""))

        body = CompletionBody(model="tiny", prompt=["Hi"])
        response = await self.kept.once(Request(scope), body, attend)
        await response(scope, never, send)
        return bytes(sent)


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
    def __iter__(self) -> Iterator[tuple[str, str, Answer]]:
        raise AssertionError("all answers are visited for one request")


async def test_room_for_a_new_key_is_found_without_a_visit_to_all_answers() -> None:
    asked = Asked(idempotency_bytes=20_000)
    asked.kept.answers = NotVisited(20_000)
    await asked.ask("first", size=17_000)
    await asked.ask("second")
    with pytest.raises(Refused):
        await asked.ask("third")
    assert asked.kept.answers.num_bytes > 20_000


async def test_an_answer_that_outgrows_its_room_reaches_its_clients_and_only_its_key_is_kept() -> None:
    asked = Asked(idempotency_bytes=20_000, idempotency_ttl_s=60)
    held = asyncio.Event()
    large, other = (asyncio.create_task(asked.ask("one", size=10_000, parts=40, held=held)) for _ in range(2))
    await asyncio.sleep(0)
    held.set()
    assert [len(answer) for answer in await asyncio.gather(large, other)] == [400_000, 400_000]
    assert asked.num_attempts == 1
    assert asked.most_bytes < 60_000, "parts are forgotten as soon as both clients have them"
    with pytest.raises(RequestRefused, match="outgrew") as caught:
        await asked.ask("one")
    assert (caught.value.status, caught.value.code) == (409, "idempotent_answer_not_kept")
    assert asked.num_attempts == 1, "it was charged once"
    assert asked.kept.answers.num_bytes < 3_000
    assert await asked.ask("two") == b"x" * 10


async def test_an_answer_that_outgrows_its_room_without_a_client_takes_none() -> None:
    asked = Asked(idempotency_bytes=20_000)
    held = asyncio.Event()
    lost = asyncio.create_task(asked.ask("one", size=10_000, parts=40, held=held))
    await asyncio.sleep(0)
    lost.cancel()
    with pytest.raises(asyncio.CancelledError):
        await lost
    held.set()
    [(_, _, answer)] = asked.kept.answers
    assert answer.task is not None
    await answer.task
    assert asked.kept.answers.num_bytes < 3_000
    assert asked.most_bytes < 32_000


async def test_clients_that_read_slowly_hold_a_bounded_part_and_nobody_waits_for_them() -> None:
    asked, held, reading = Asked(idempotency_bytes=20_000), asyncio.Event(), asyncio.Event()
    size, parts = 100_000, 40
    clients = [None, reading, None, reading]
    asking = [
        asyncio.create_task(asked.ask("one", size=size, parts=parts, held=held, reading=client)) for client in clients
    ]
    await asyncio.sleep(0)
    held.set()
    assert [len(await asking[i]) for i in (0, 2)] == [size * parts] * 2, "before the slow ones have taken anything"
    assert not asking[1].done()
    assert asked.most_bytes < UNREAD_BYTES + 2 * size
    assert asked.kept.answers.num_bytes < 3_000, "what slow clients have lost is forgotten"
    assert await asked.ask("one", "other") == b"x" * 10
    reading.set()
    assert all(len(answer) < size * parts for answer in await asyncio.gather(asking[1], asking[3]))


async def test_a_whole_answer_beyond_its_room_reaches_a_client_that_reads_slowly() -> None:
    asked, held, reading = Asked(idempotency_bytes=20_000), asyncio.Event(), asyncio.Event()
    asking = asyncio.create_task(asked.ask("one", size=2 * UNREAD_BYTES, held=held, reading=reading))
    await asyncio.sleep(0)
    held.set()
    await asyncio.sleep(0)
    reading.set()
    assert len(await asking) == 2 * UNREAD_BYTES


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
        assert asked.kept.answers.num_bytes == sum(answer.num_bytes for _, _, answer in found)
        for owner in "abc":
            of_owner = sum(answer.num_bytes for held, _, answer in found if held == owner)
            assert asked.kept.answers.bytes_of(owner) == of_owner
    asked.clock.now += 60
    await asked.kept.tick()
    assert (asked.kept.answers.num_bytes, list(asked.kept.answers)) == (0, [])


async def test_the_end_of_the_server_ends_attempts() -> None:
    asked = Asked()
    started = asyncio.Event()

    async def held(_: Request) -> Response:
        started.set()
        await asyncio.Event().wait()
        raise AssertionError

    caller = Caller("k", "acme", frozenset({"client"}), "standard")
    scope = {"type": "http", "path": "/", "headers": [(b"idempotency-key", b"one")], "state": {"caller": caller}}
    waiting: Awaitable[Response] = asyncio.create_task(
        asked.kept.once(Request(scope), CompletionBody(model="tiny", prompt=["Hi"]), held)
    )
    await started.wait()
    await asked.kept.close()
    with pytest.raises(Exception, match="shutdown"):
        await waiting
