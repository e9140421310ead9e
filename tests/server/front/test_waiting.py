"""The port of a server that still loads: what it says, how the application takes it over, and how a start is ended."""

import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx2
import pytest

from prolepsis.core.config import EngineConfig, ServerConfig
from prolepsis.core.errors import ModelLoadError
from prolepsis.core.phases import Phases, phase, watching
from prolepsis.core.telemetry.metrics import Metrics
from prolepsis.server.front.waiting import waiting
from prolepsis.server.run import StartedEngine, bind, serve
from tests.commands import free_port, wait_until_ready
from tests.server.fakes import ByteTokenizer, FakeEngine
from tests.server_process import ServerProcess
from tests.waiting import wait_for

COMPLETION = {"model": "tiny", "prompt": "Hi", "max_tokens": 4}


def serve_slow(config: ServerConfig, gate: Path, deaf: bool) -> None:
    """Load until the file `gate` is there; if `deaf` with code that no signal interrupts."""

    def start(_: EngineConfig, __: Metrics) -> StartedEngine:
        with phase("reading weights", 4) as reading:
            reading.done = 1
            while not gate.exists():
                with suppress(BaseException if deaf else ZeroDivisionError):
                    time.sleep(0.01)
        return StartedEngine(FakeEngine(), ByteTokenizer())

    with watching(Phases()):
        serve(EngineConfig(), config, start)


@contextmanager
def slow(gate: Path, *, deaf: bool = False) -> Iterator[tuple[ServerProcess, str]]:
    port = free_port()
    running = ServerProcess(serve_slow, ServerConfig(port=port, store="none", replay_sample=0.0), gate, deaf)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until_ready(f"{url}/health/live")
        yield running, url
    finally:
        running.kill()
        running.wait()


def test_the_port_of_a_start_says_what_it_does(tmp_path: Path) -> None:
    with slow(tmp_path / "gate") as (_, url):
        wait_for(lambda: "reading" in httpx2.get(f"{url}/health/live").json()["detail"])
        for path in ("/health/ready", "/health", "/ping"):
            ready = httpx2.get(url + path)
            assert (ready.status_code, ready.json()["ready"]) == (503, False)
            assert ready.json()["detail"].startswith("reading weights 1 of 4")
        refused = httpx2.post(f"{url}/v1/completions", json=COMPLETION)
        error = refused.json()["error"]
        assert (refused.status_code, error["code"], error["type"]) == (503, "loading", "server_error")
        assert "reading weights 1 of 4" in error["message"]
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.headers["connection"] == "close"


def test_a_large_request_gets_its_reply_whole(tmp_path: Path) -> None:
    """A connection that is closed while more of its request comes is reset."""
    with (
        slow(tmp_path / "gate") as (_, url),
        socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as sent,
    ):
        sent.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 900000\r\n\r\n")
        for _ in range(9):
            time.sleep(0.02)
            sent.sendall(bytes(100_000))
        assert b'"code":"loading"' in sent.makefile("rb").read()


def test_no_request_is_lost_while_the_application_takes_over(tmp_path: Path) -> None:
    gate, statuses = tmp_path / "gate", Counter[int]()
    with slow(gate) as (_, url), socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as early:
        gate.touch()
        while statuses[200] < 3:
            statuses[httpx2.post(f"{url}/v1/completions", json=COMPLETION, timeout=20).status_code] += 1
        early.sendall(b"GET /health/ready HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert early.recv(4096).startswith(b"HTTP/1.1 503"), "a connection from before gets its reply, too"
    assert statuses.keys() <= {200, 503}


def test_what_was_accepted_last_gets_its_reply() -> None:
    """A connection is accepted in one round of the loop, and gets its protocol in the next, after the handing over."""

    def hold(entered: threading.Event, leave: threading.Event) -> None:
        entered.set()
        leave.wait(20)

    config = ServerConfig(port=0, store="none")
    rounds = [(threading.Event(), threading.Event()) for _ in range(2)]
    with bind(config) as listener:
        listener.listen()
        with waiting(listener, config, Phases()) as server, socket.create_connection(listener.getsockname()) as first:
            loop = server._loop
            assert loop is not None
            first.sendall(b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert first.recv(4096).startswith(b"HTTP/1.1 200")
            loop.call_soon_threadsafe(hold, *rounds[0])
            rounds[0][0].wait(20)
            with socket.create_connection(listener.getsockname(), timeout=20) as last:
                last.sendall(b"GET /health/ready HTTP/1.1\r\nhost: localhost\r\n\r\n")
                loop.call_soon_threadsafe(hold, *rounds[1])  # in the round that accepts, before it does
                rounds[0][1].set()
                rounds[1][0].wait(20)
                handing_over = threading.Thread(target=server.hand_over)
                handing_over.start()
                wait_for(lambda: server._loop is None)
                time.sleep(0.1)
                rounds[1][1].set()
                assert last.recv(4096).startswith(b"HTTP/1.1 503")
                handing_over.join()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_a_signal_ends_a_start_that_does_not_listen(tmp_path: Path, number: int, status: int) -> None:
    with slow(tmp_path / "gate", deaf=True) as (running, url):
        wait_for(lambda: "reading" in httpx2.get(f"{url}/health/live").json()["detail"])
        running.send_signal(number)
        assert running.wait(20) == status


def test_a_signal_interrupts_a_start(tmp_path: Path) -> None:
    with slow(tmp_path / "gate") as (running, url):
        wait_for(lambda: "reading" in httpx2.get(f"{url}/health/live").json()["detail"])
        running.send_signal(signal.SIGTERM)
        assert running.wait(20) == 0


def test_an_error_while_loading_is_raised_and_the_port_is_free_again() -> None:
    port = free_port()

    def start(_: EngineConfig, __: Metrics) -> StartedEngine:
        assert httpx2.get(f"http://127.0.0.1:{port}/health/live").status_code == 200
        raise ModelLoadError("no such weights")

    with pytest.raises(ModelLoadError, match="no such weights"):
        serve(EngineConfig(), ServerConfig(port=port, store="none"), start)
    with socket.create_server(("127.0.0.1", port)):
        pass
