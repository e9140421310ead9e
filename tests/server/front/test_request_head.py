"""Over real sockets: heads that can be read in two ways are refused, and their connections end."""

import pytest

from tests.server.conftest import Served
from tests.server.raw_http import connected, error_of, trickled

BODY = b'{"model": "tiny", "prompt": "Hi", "max_tokens": 2}'
CHUNKED = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
LENGTH = b"content-length: %d" % len(BODY)
GET = b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"


def post(*fields: bytes, body: bytes = BODY, version: bytes = b"1.1") -> bytes:
    lines = [b"POST /v1/completions HTTP/" + version, b"host: localhost", *fields]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def answered(shared: Served, sent: bytes) -> bytes:
    """Send it with another request behind it, and return what came until the server closed."""
    with connected(shared) as client:
        client.sendall(sent + GET)
        return trickled(client, b"")[0]


REFUSED = {
    "two_keys": (post(LENGTH, b"authorization: Bearer a", b"Authorization: Bearer b"), 400, "authorization"),
    "two_keys_as_x_api_key": (post(LENGTH, b"x-api-key: a", b"X-Api-Key: b"), 400, "x-api-key"),
    "the_same_key_twice": (post(LENGTH, b"authorization: Bearer a", b"authorization: Bearer a"), 400, "2 times"),
    "two_modes": (post(LENGTH, b"x-spec-mode: off", b"x-spec-mode: always"), 400, "x-spec-mode"),
    "two_consents": (post(LENGTH, b"x-spec-learn: no", b"x-spec-learn: yes"), 400, "x-spec-learn"),
    "length_and_chunks": (post(LENGTH, b"transfer-encoding: chunked", body=CHUNKED), 400, "both"),
    "chunks_and_length": (post(b"Transfer-Encoding: chunked", b"Content-Length: 5", body=CHUNKED), 400, "both"),
    "chunks_of_http_1_0": (post(b"transfer-encoding: chunked", body=CHUNKED, version=b"1.0"), 400, "HTTP/1.0"),
    "two_lengths": (post(LENGTH, b"content-length: 3"), 400, "Content-Length"),
    "a_signed_length": (post(b"content-length: +5"), 400, "Content-Length"),
    "two_hosts": (post(LENGTH, b"host: other"), 400, "Host"),
    "no_host": (b"GET /v1/models HTTP/1.1\r\n\r\n", 400, "Host"),
    "brotli": (post(LENGTH, b"content-encoding: br"), 415, "'br'; allowed: identity, gzip"),
    "two_codings": (post(LENGTH, b"content-encoding: identity, br"), 415, "content-encoding"),
    "unknown_transfer_encoding": (post(b"transfer-encoding: gzip, chunked", body=CHUNKED), 400, "chunked"),
    "http_2": (post(LENGTH, version=b"2.0"), 400, "HTTP/2.0; allowed: HTTP/1.0 and HTTP/1.1"),
    "http_1_2": (post(LENGTH, version=b"1.2"), 400, "HTTP/1.2"),
    "http_0_9": (post(LENGTH, version=b"0.9"), 400, "HTTP/0.9"),
    "no_version": (b"GET /v1/models\r\n\r\n", 400, "request line"),
    "control_character": (post(LENGTH, b"x-request-id: a\x01b"), 400, "x-request-id holds the control character 0x01"),
    "delete_character": (post(LENGTH, b"x-spec-mode: o\x7fff"), 400, "0x7f"),
    "null_character": (post(LENGTH, b"x-request-id: a\x00b"), 400, "header line"),
    "carriage_return": (post(LENGTH, b"x-request-id: a\rb: c"), 400, "header line"),
    "control_character_in_a_name": (post(LENGTH, b"x\x01y: a"), 400, "header line"),
    "control_character_in_the_path": (b"GET /v1/\x01models HTTP/1.1\r\nhost: a\r\n\r\n", 400, "request line"),
    "space_before_the_colon": (post(LENGTH, b"x-request-id : a"), 400, "header line"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_ambiguous_heads_are_refused_and_the_connection_is_closed(shared: Served, name: str) -> None:
    sent, expected, what = REFUSED[name]
    num_requests = len(shared.engine.requests)
    status, error = error_of(answered(shared, sent))
    assert (status, error["code"], error["connection"]) == (expected, "invalid_http", "close")
    assert what in str(error["message"])
    assert len(shared.engine.requests) == num_requests


@pytest.mark.parametrize(
    "sent",
    [
        post(LENGTH, b"content-encoding: identity"),
        post(b"transfer-encoding: chunked", body=CHUNKED),
        post(LENGTH, b"x-request-id: a\tb", "x-title: grün".encode()),
        post(LENGTH, b"x-one: a", b"x-one: a"),
    ],
)
def test_valid_heads_are_served(shared: Served, sent: bytes) -> None:
    received = answered(shared, sent)
    assert received.startswith(b"HTTP/1.1 200")
    assert received.count(b"HTTP/1.1 200") == 2


def test_refusals_are_counted(shared: Served) -> None:
    def count() -> float:
        name, labels = "prolepsis_admission_refused_total", {"reason": "invalid_http"}
        return shared.metrics.registry.get_sample_value(name, labels) or 0

    before = count()
    answered(shared, REFUSED["brotli"][0])
    assert count() == before + 1
