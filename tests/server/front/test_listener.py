"""More clients than the process has descriptors for, against a server in a process with few of them."""

import errno
import os
import resource
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import httpx2
import pytest

from prolepsis.core.config import EngineConfig, LimitTerms, ServerConfig
from prolepsis.core.errors import ConfigError
from prolepsis.core.telemetry.metrics import Metrics
from prolepsis.server.front.key_file import KeyFile, new_key
from prolepsis.server.front.keys import Keys
from prolepsis.server.front.listener import check_tls, is_loopback
from prolepsis.server.run import StartedEngine, bind, serve
from tests.commands import wait_until_ready
from tests.server.application import build
from tests.server.conftest import served
from tests.server.fakes import ByteTokenizer, FakeEngine
from tests.server.raw_http import error_of

REQUEST = b"GET /health/live HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
NUM_CLIENTS = 150


def serve_with_few_descriptors(url: Connection) -> None:
    """Serve, with room for 10,000 connections, until only 20 more files may be opened."""
    with served(FakeEngine(), ServerConfig(limits=LimitTerms(max_connections=10_000))) as running:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/dev/fd")) + 20, hard))
        url.send(running.url)
        signal.pause()


@contextmanager
def short_of_descriptors() -> Iterator[httpx2.URL]:
    context = get_context("fork")  # its limit is not this process' limit
    ours, theirs = context.Pipe()
    process = context.Process(target=serve_with_few_descriptors, args=(theirs,))
    process.start()
    theirs.close()  # so that a server which ends before it says where it is does not leave this side waiting
    try:
        yield httpx2.URL(ours.recv())
    finally:
        process.kill()
        process.join()
        process.close()


def replies(url: httpx2.URL, stack: ExitStack, *, silent: int) -> Counter[object]:
    """Connect all clients, then let all but `silent` ask; return how often each status or code of an error came."""
    clients = [stack.enter_context(socket.create_connection((url.host, url.port or 80))) for _ in range(NUM_CLIENTS)]
    found: Counter[object] = Counter()
    for client in clients[silent:]:
        client.settimeout(60)
        client.sendall(REQUEST)
    for client in clients[silent:]:
        received = b""
        while part := client.recv(65536):
            received += part
        if received.startswith(b"HTTP/1.1 200"):
            found[200] += 1
        else:
            status, error = error_of(received)
            found[status, error["code"]] += 1
    return found


@pytest.mark.parametrize("silent", [0, 100])
def test_every_client_is_answered_where_descriptors_run_out(silent: int) -> None:
    with short_of_descriptors() as url, ExitStack() as stack:
        found = replies(url, stack, silent=silent)
        assert found.keys() <= {200, (503, "too_many_connections")}
        assert found[503, "too_many_connections"] > 0
        assert found.total() == NUM_CLIENTS - silent
        stack.close()
        wait_until_ready(f"{url}/health/live")  # it has yet to see that the clients are gone


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a connection whose client takes nothing")
def test_the_kernel_ends_a_connection_whose_client_takes_nothing_of_what_is_left() -> None:
    """As when the route has ended and the rest of its answer is with the kernel."""
    with bind(ServerConfig(port=0, limits=LimitTerms(write_timeout_s=0.1))) as listener, socket.socket() as client:
        listener.listen()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(listener.getsockname())
        with socket.socket.accept(listener)[0] as connection:
            connection.setblocking(False)
            with suppress(BlockingIOError):
                while True:
                    connection.send(b"x" * 65536)
            poll = select.poll()
            poll.register(connection, select.POLLERR)
            assert poll.poll(60_000)
            assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ETIMEDOUT


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("localhost", True)]
    + [(host, False) for host in ("0.0.0.0", "::", "", "10.0.0.1", "localhost.example", "example.org")],
)
def test_loopback_addresses(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


def test_without_keys_other_addresses_are_refused_before_anything_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(config: EngineConfig, metrics: Metrics) -> StartedEngine:
        raise AssertionError("the model was loaded")

    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    config = ServerConfig(host="0.0.0.0", port=0)
    with pytest.raises(ConfigError, match="prolepsis keys create") as caught:
        serve(EngineConfig(), config, start)
    assert caught.value.param == "keys_file"


def test_a_key_file_that_was_named_must_be_there(tmp_path: Path) -> None:
    def start(config: EngineConfig, metrics: Metrics) -> StartedEngine:
        raise AssertionError("the model was loaded")

    with pytest.raises(ConfigError, match=r"keys\.json does not exist") as caught:
        serve(EngineConfig(), ServerConfig(port=0, keys_file=tmp_path / "keys.json"), start)
    assert caught.value.param == "keys_file"


def test_no_application_is_built_open_to_others(tmp_path: Path) -> None:
    config = ServerConfig(host="0.0.0.0")
    with pytest.raises(ConfigError):
        build(config, FakeEngine(), ByteTokenizer(), Metrics())
    file = KeyFile(tmp_path / "keys.json")
    file.add(new_key("acme")[0])
    build(config, FakeEngine(), ByteTokenizer(), Metrics(), keys=Keys(file))


def test_tls_files_are_checked_at_start(tmp_path: Path) -> None:
    check_tls(ServerConfig())
    with pytest.raises(ConfigError, match="without tls_certificate"):
        check_tls(ServerConfig(tls_key=tmp_path / "key.pem"))
    with pytest.raises(ConfigError, match="No such file"):
        check_tls(ServerConfig(tls_certificate=tmp_path / "no.pem"))
    (tmp_path / "bad.pem").write_text("not a certificate")
    with pytest.raises(ConfigError, match=r"bad\.pem"):
        check_tls(ServerConfig(tls_certificate=tmp_path / "bad.pem"))


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make a certificate")
def test_a_certificate_with_its_key_is_accepted(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    made = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost"
    subprocess.run(
        [*shlex.split(made), "-keyout", str(key), "-out", str(certificate)],
        check=True,
        capture_output=True,
        timeout=30,
    )
    check_tls(ServerConfig(tls_certificate=certificate, tls_key=key))
