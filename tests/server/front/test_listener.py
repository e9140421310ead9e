"""More clients than the process has descriptors for, against a server in a process with few of them."""

import errno
import os
import resource
import select
import signal
import socket
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection

import httpx
import pytest

from prolepsis.core.config import ServerConfig, ServingLimits
from prolepsis.server.run import bind
from tests.commands import wait_until_ready
from tests.server.conftest import served
from tests.server.fakes import FakeEngine
from tests.server.raw_http import error_of

REQUEST = b"GET /health/live HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
NUM_CLIENTS = 150


def serve_with_few_descriptors(url: Connection) -> None:
    """Serve, with room for 10,000 connections, until only 20 more files may be opened."""
    with served(FakeEngine(), ServerConfig(limits=ServingLimits(max_connections=10_000))) as running:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/dev/fd")) + 20, hard))
        url.send(running.url)
        signal.pause()


@contextmanager
def short_of_descriptors() -> Iterator[httpx.URL]:
    context = get_context("fork")  # its limit is not this process' limit
    ours, theirs = context.Pipe()
    process = context.Process(target=serve_with_few_descriptors, args=(theirs,))
    process.start()
    theirs.close()  # so that a server which ends before it says where it is does not leave this side waiting
    try:
        yield httpx.URL(ours.recv())
    finally:
        process.kill()
        process.join()
        process.close()


def replies(url: httpx.URL, stack: ExitStack, *, silent: int) -> Counter[object]:
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
    with bind(ServerConfig(port=0, limits=ServingLimits(write_timeout_s=0.1))) as listener, socket.socket() as client:
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
