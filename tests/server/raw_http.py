"""HTTP as bytes over a real socket, for what clients of good manners do not send."""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import httpx2

from tests.server.conftest import Served


@contextmanager
def connected(running: Served) -> Iterator[socket.socket]:
    url = httpx2.URL(running.url)
    with closing(socket.create_connection((url.host, url.port or 80), timeout=60)) as client:
        yield client


def trickled(client: socket.socket, drops: bytes, seconds: float = 60.0) -> tuple[bytes, float]:
    """Send a byte of `drops` every 20 ms; return what came back until the server closed, and when it did (seconds)."""
    client.settimeout(0.02)
    started, received, left = time.monotonic(), b"", list(drops)
    while time.monotonic() < started + seconds:
        try:
            part = client.recv(65536)
            if not part:
                return received, time.monotonic() - started
            received += part
            if left:
                client.send(bytes([left.pop(0)]))
        except TimeoutError:
            if left:
                client.send(bytes([left.pop(0)]))
        except ConnectionError:
            return received, time.monotonic() - started
    raise AssertionError(f"still open after {seconds} s: {received!r}")


def error_of(received: bytes) -> tuple[int, dict[str, object]]:
    """Return the status and the error of one whole reply that says that the connection ends."""
    head, _, body = received.partition(b"\r\n\r\n")
    lines = head.decode().lower().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines[1:])
    assert int(headers["content-length"]) == len(body)
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return int(lines[0].split()[1]), {**error, "connection": headers.get("connection")}
