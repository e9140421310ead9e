"""Over real sockets: clients that send slowly, too many of them, and what is no HTTP."""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import httpx2
import pytest

from prolepsis.core.config import LimitTerms, ServerConfig
from tests.server.conftest import Served, served
from tests.server.fakes import FakeEngine
from tests.server.raw_http import connected, error_of, trickled
from tests.waiting import wait_for

HEAD = b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\n"
PATIENT = ServerConfig(
    max_body_bytes=4096, limits=LimitTerms(header_timeout_s=0.5, upload_timeout_s=0.5, max_connections=3)
)


@pytest.fixture(scope="module")
def impatient() -> Iterator[Served]:
    with served(FakeEngine(), PATIENT, linger_s=0.2) as running:
        yield running


def ask_liveness(client: socket.socket) -> None:
    client.send(HEAD + b"\r\n")
    received = b""
    while not received.endswith(b"}"):
        part = client.recv(65536)
        assert part, f"closed after {received!r}"
        received += part
    assert received.startswith(b"HTTP/1.1 200")


def refused(running: Served, reason: str) -> float:
    return running.metrics.registry.get_sample_value("prolepsis_admission_refused_total", {"reason": reason}) or 0


def test_headers_that_trickle_in_end_with_408(impatient: Served) -> None:
    before = refused(impatient, "headers_too_slow")
    with connected(impatient) as client:
        received, seconds = trickled(client, HEAD + b"x: " + b"y" * 500)
    status, error = error_of(received)
    assert (status, error["code"], error["connection"]) == (408, "request_timeout", "close")
    assert seconds > 0.45
    assert refused(impatient, "headers_too_slow") == before + 1


def test_the_clock_of_the_second_request_starts_with_the_end_of_the_first(impatient: Served) -> None:
    with connected(impatient) as client:
        for _ in range(4):
            time.sleep(0.2)
            ask_liveness(client)
        received, seconds = trickled(client, HEAD + b"x: " + b"y" * 500)
    assert error_of(received)[0] == 408
    assert seconds > 0.45


def test_a_silent_connection_gets_no_answer(impatient: Served) -> None:
    with connected(impatient) as client:
        received, seconds = trickled(client, b"")
    assert received == b""
    assert seconds > 0.45


def test_a_body_that_trickles_in_ends_with_408_and_then_without_a_connection(impatient: Served) -> None:
    with connected(impatient) as client:
        client.send(POST)
        received, seconds = trickled(client, b" " * 1000)
    status, error = error_of(received)
    assert (status, error["code"]) == (408, "request_timeout")
    assert seconds > 0.65, "the rest of the body was waited for"


def test_a_slow_answer_does_not_count_as_a_slow_client() -> None:
    config = ServerConfig(limits=LimitTerms(header_timeout_s=0.5))
    with served(FakeEngine(delay_s=0.2), config) as running, httpx2.Client(base_url=running.url) as client:
        for _ in range(2):
            reply = client.post("/v1/completions", json={"model": "tiny", "prompt": "Hi", "max_tokens": 9})
            assert reply.status_code == 200


def ask_for_tokens(client: socket.socket) -> None:
    """Begin an answer that does not end."""
    body = json.dumps({"model": "tiny", "prompt": "Hi", "stream": True}).encode()
    client.send(POST.replace(b"1000", str(len(body)).encode()) + body)
    assert client.recv(12) == b"HTTP/1.1 200"


def test_one_connection_too_many_is_503_until_another_ends() -> None:
    with served(FakeEngine(hold_after=1), PATIENT, linger_s=0.2) as running:
        with ExitStack() as stack:
            for _ in range(3):
                ask_for_tokens(stack.enter_context(connected(running)))
            with connected(running) as surplus:
                surplus.send(HEAD + b"\r\n")
                status, error = error_of(trickled(surplus, b"")[0])
                assert (status, error["code"], error["connection"]) == (503, "too_many_connections", "close")
            with connected(running) as silent:
                assert trickled(silent, b"")[0] == b""
        assert refused(running, "too_many_connections") == 1
        wait_for(lambda: httpx2.get(f"{running.url}/health/live").status_code == 200)


def test_silent_connections_lock_no_client_out() -> None:
    with served(FakeEngine(), ServerConfig(limits=LimitTerms(max_connections=3))) as running, ExitStack() as stack:
        silent = [stack.enter_context(connected(running)) for _ in range(3)]
        with connected(running) as client:
            ask_liveness(client)
            assert silent[0].recv(1) == b"", "it gave its place away"
            ask_liveness(silent[2])
        assert refused(running, "too_many_connections") == 0


def test_input_that_is_not_http_gets_400_in_our_shape(impatient: Served) -> None:
    with connected(impatient) as client:
        client.send(b"\x16\x03\x01 hello\r\n\r\n")
        status, error = error_of(trickled(client, b"")[0])
    assert (status, error["code"]) == (400, "invalid_http")


def test_headers_far_beyond_the_limit_are_431_although_much_of_them_is_not_read(impatient: Served) -> None:
    with connected(impatient) as client:
        client.sendall(HEAD + b"x: " + b"y" * 700_000)
        status, error = error_of(trickled(client, b"")[0])
    assert (status, error["code"], error["connection"]) == (431, "request_headers_too_large", "close")


def test_invalid_input_during_an_answer_is_reported_after_it() -> None:
    with served(FakeEngine(delay_s=0.1)) as running, connected(running) as client:
        body = json.dumps({"model": "tiny", "prompt": "Hi", "stream": True, "max_tokens": 30}).encode()
        head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(body)
        client.send(head + body)
        received = client.recv(65536)
        client.send(b"\x00nonsense\r\n\r\n")
        received += trickled(client, b"")[0]
    answer, _, refusal = received.partition(b"HTTP/1.1 400")
    assert answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert error_of(b"HTTP/1.1 400" + refusal)[0] == 400


def completion(text: str = "Hi", version: str = "1.1", **fields: object) -> bytes:
    body = json.dumps({"model": "tiny", "prompt": text, "max_tokens": 3, **fields}).encode()
    head = f"POST /v1/completions HTTP/{version}\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def until_closed(client: socket.socket) -> bytes:
    client.settimeout(60)
    received = b""
    while part := client.recv(65536):
        received += part
    return received


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_a_client_that_closes_its_direction_gets_its_answer(stream: bool, version: str) -> None:
    engine = FakeEngine(delay_s=0.05)
    with served(engine) as running, connected(running) as client:
        client.sendall(completion(version=version, stream=stream))
        client.shutdown(socket.SHUT_WR)
        received = until_closed(client)
    if version == "1.1":
        assert received.startswith(b"HTTP/1.1 100 \r\n\r\n")
        received = received.removeprefix(b"HTTP/1.1 100 \r\n\r\n")
    assert received.startswith(b"HTTP/1.1 200 OK")
    assert (b"data: [DONE]" if stream else b'"finish_reason"') in received
    assert engine.aborted == []


def test_requests_sent_at_once_before_the_client_closes_its_direction_are_all_answered() -> None:
    with served(FakeEngine(delay_s=0.02)) as running, connected(running) as client:
        client.sendall(b"".join(completion(f"Hi {i}") for i in range(3)) + b"GET /health/live HTT")
        client.shutdown(socket.SHUT_WR)
        received = until_closed(client)
    assert received.count(b"HTTP/1.1 200 OK") == 3


def test_a_client_that_leaves_altogether_is_noticed_before_its_answer() -> None:
    engine = FakeEngine(hold_after=1)
    with served(engine) as running:
        with connected(running) as client:
            client.sendall(completion(max_tokens=9))
            wait_for(engine.held.is_set)
        wait_for(lambda: engine.aborted)


def test_a_body_that_stays_incomplete_ends_the_connection() -> None:
    engine = FakeEngine()
    with served(engine) as running, connected(running) as client:
        client.sendall(completion()[:-1])
        client.shutdown(socket.SHUT_WR)
        assert until_closed(client) == b""
    assert engine.requests == []


def test_a_body_in_tiny_parts_is_read_over_many_rounds_and_whole() -> None:
    body = json.dumps({"model": "tiny", "prompt": "Hi", "max_tokens": 3}).encode()
    body += b" " * (1000 - len(body))
    parts = b"".join(b"1\r\n" + bytes([one]) + b"\r\n" for one in body) + b"0\r\n\r\n"
    head = POST.replace(b"content-length: 1000", b"transfer-encoding: chunked")
    with served(FakeEngine()) as running, connected(running) as client:
        client.sendall(head + parts)
        client.shutdown(socket.SHUT_WR)  # the end of the client's direction comes while parts still wait
        received = b""
        while part := client.recv(65536):
            received += part
    assert b"HTTP/1.1 200" in received
    assert b"Gr" in received
