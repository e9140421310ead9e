"""HAProxy as the edge of a region: its own servers first, streams to their end, headers as they were sent."""

import http.client
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.commands import free_port, running
from tests.deploy.written import DEPLOY

HAPROXY = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin")
pytestmark = pytest.mark.skipif(HAPROXY is None, reason="haproxy is missing: apt-get install haproxy")
SERVERS = ("HERE_1", "HERE_2", "THERE_1", "THERE_2")
HERE = set(SERVERS[:2])
SENT = {"Authorization": "Bearer key", "X-Request-Timeout-Ms": "5000", "Idempotency-Key": "one"}


class FakeServer(ThreadingHTTPServer):
    """Says whether it is ready, answers with its name, and streams until it may end."""

    daemon_threads = True

    def __init__(self, name: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.name, self.is_ready, self.may_end = name, True, threading.Event()

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: checks of HAProxy close their connections early."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeServer

    def do_GET(self) -> None:
        self._answer(200 if self.server.is_ready else 503, b"{}")

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        if not self.server.is_ready:
            self._answer(503, b"drains")
        elif self.path == "/stream":
            self._head(200, "Transfer-Encoding", "chunked")
            self._chunk(b"data: first\n\n")
            self.server.may_end.wait(20)
            self._chunk(b"data: [DONE]\n\n")
            self._chunk(b"")
        else:
            self._answer(200, str({name: self.headers[name] for name in SENT}).encode())

    def _answer(self, status: int, body: bytes) -> None:
        self._head(status, "Content-Length", str(len(body)))
        self.wfile.write(body)

    def _head(self, status: int, length: str, value: str) -> None:
        self.send_response(status)
        for name, text in ((length, value), ("X-Server", self.server.name), ("Retry-After", "7")):
            self.send_header(name, text)
        self.end_headers()

    def _chunk(self, text: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(text), text))

    def log_message(self, format: str, *args: object) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Message
    body: str


@dataclass(frozen=True, slots=True)
class Edge:
    """HAProxy with our configuration in front of fake servers."""

    port: int
    servers: dict[str, FakeServer] = field(default_factory=dict)

    @contextmanager
    def posted(self, path: str) -> Iterator[http.client.HTTPResponse]:
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)) as connection:
            connection.request("POST", path, b"{}", SENT)
            with connection.getresponse() as response:
                yield response

    def ask(self) -> Answer:
        with self.posted("/v1/completions") as response:
            return Answer(response.status, response.headers, response.read().decode())

    def serves(self, times: int = 6) -> set[str]:
        """Return the servers that answered, so many times; '' for an answer that none of them made."""
        answers = [self.ask() for _ in range(times)]
        assert [answer.status for answer in answers] == [200] * times
        return {answer.headers.get("X-Server", "") for answer in answers}

    def set_ready(self, *names: str) -> None:
        for server in self.servers.values():
            server.is_ready = server.name in names


def until(condition: Callable[[], bool], limit_s: float = 30) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.fixture(scope="module")
def edge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Edge]:
    assert HAPROXY is not None
    edge = Edge(free_port(), {name: FakeServer(name) for name in SERVERS})
    places = {name: f"127.0.0.1:{server.server_address[1]}" for name, server in edge.servers.items()}
    environment = {**os.environ, **places, "LISTEN": f"127.0.0.1:{edge.port}"}
    log = tmp_path_factory.mktemp("haproxy") / "log"
    command = [HAPROXY, "-db", "-f", str(DEPLOY / "haproxy" / "haproxy.cfg")]
    with ExitStack() as stack:
        for server in edge.servers.values():
            stack.callback(server.server_close)
            stack.callback(server.shutdown)
            threading.Thread(target=server.serve_forever, daemon=True).start()
        stack.enter_context(running(command, log, environment))
        until(lambda: _listens(edge, log))
        yield edge


def _listens(edge: Edge, log: Path) -> bool:
    try:
        edge.ask()
    except ConnectionError:
        assert "ALERT" not in log.read_text(), log.read_text()
        return False
    return True


@pytest.fixture(autouse=True)
def ready_here(edge: Edge) -> None:
    edge.set_ready(*SERVERS)
    until(lambda: {edge.ask().headers["X-Server"] for _ in range(6)} == HERE)


def test_a_region_serves_itself_and_headers_stay(edge: Edge) -> None:
    assert edge.serves(20) == HERE
    answer = edge.ask()
    assert answer.body == str(SENT)
    assert answer.headers["Retry-After"] == "7"


def test_what_a_draining_server_refuses_another_of_its_region_serves(edge: Edge) -> None:
    edge.set_ready("HERE_2", "THERE_1", "THERE_2")
    assert edge.serves(20) == {"HERE_2"}  # from the first request on, before a check has seen it


def test_another_region_takes_over_while_none_here_is_ready_and_streams_go_on(edge: Edge) -> None:
    with edge.posted("/stream") as stream:
        assert stream.readline() == b"data: first\n"
        streaming = edge.servers[str(stream.headers["X-Server"])]
        edge.set_ready("THERE_1", "THERE_2")
        until(lambda: edge.ask().status == 200)
        assert edge.serves() == {"THERE_1", "THERE_2"}
        streaming.may_end.set()
        assert stream.read() == b"\ndata: [DONE]\n\n"


def test_where_none_is_ready_a_client_is_told_so(edge: Edge) -> None:
    edge.set_ready()
    assert edge.ask().status == 503
