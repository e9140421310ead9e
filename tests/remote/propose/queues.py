"""A Redis of one test, which the test may kill, and a propose server and engines at a queue there."""

import asyncio
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from importlib.util import find_spec

import pytest

from prolepsis.engine.drafting.proposer import Proposer
from prolepsis.engine.drafting.remote.link import Link
from prolepsis.engine.drafting.remote.proposer import RemoteProposer, RemoteSettings
from prolepsis.engine.drafting.remote.queue import Queue
from prolepsis.remote.propose.server import ProposeServer, ServedModel
from tests.commands import free_port
from tests.engine.drafting.sequences import VOCAB
from tests.remote.propose.servers import KEY, VOCABULARY
from tests.waiting import LIMIT_S, ended, wait_for

PROGRAM = shutil.which("redis-server")
needs_client = pytest.mark.skipif(find_spec("redis") is None, reason="redis, of the extra queue, is not installed")
needs_redis = pytest.mark.skipif(PROGRAM is None, reason="redis-server is not installed")


class RedisServer:
    """Keeps nothing on the disk: what is in it is lost with it."""

    def __init__(self) -> None:
        self._port = free_port()
        self.queue = Queue(f"redis://:secret@127.0.0.1:{self._port}/0", "drafts", KEY)
        self.start()

    def start(self) -> None:
        options = ["--bind", "127.0.0.1", "--port", str(self._port), "--requirepass", "secret", "--save", ""]
        self._process = subprocess.Popen([str(PROGRAM), *options, "--logfile", "/dev/null"])
        wait_for(self._listens)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def _listens(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self._port)):
            return True
        return False


@contextmanager
def redis_server() -> Iterator[RedisServer]:
    server = RedisServer()
    try:
        yield server
    finally:
        server.kill()


@contextmanager
def taking(proposer: Proposer, queue: Queue) -> Iterator[None]:
    """Run a propose server at a queue, in a thread."""
    from prolepsis.remote.propose.queue import QueueServer

    stop: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]] = Future()

    async def run() -> None:
        server = ProposeServer(ServedModel(proposer, VOCABULARY, VOCAB), KEY)
        task = asyncio.ensure_future(QueueServer(server, queue).run())
        stop.set_result((asyncio.get_running_loop(), task))
        await asyncio.gather(task, return_exceptions=True)

    thread = threading.Thread(target=asyncio.run, args=(run(),), daemon=True)
    thread.start()
    loop, task = stop.result(LIMIT_S)
    try:
        yield
    finally:
        loop.call_soon_threadsafe(task.cancel)
        ended(thread)


def engine_at(queue: Queue, *, wait_s: float = LIMIT_S) -> RemoteProposer:
    """Return the proposer of an engine that has joined a queue, where a server is or comes."""
    link = Link(queue.connect)
    wait_for(link.connection)
    return RemoteProposer(link, KEY, VOCAB, RemoteSettings(wait_s=wait_s))
