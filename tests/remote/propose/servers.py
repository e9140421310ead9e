"""The other end of the protocol, for tests: a link without a network, a propose server in a thread, a rude server."""

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager

from prolepsis.core import handshake
from prolepsis.core.codec import FrameReader, ProtocolError
from prolepsis.core.handshake import SharedKey
from prolepsis.engine.drafting.draft import Draft, chain
from prolepsis.engine.drafting.remote.link import ConnectionLost, Link, RemoteAddress
from prolepsis.engine.drafting.remote.messages import (
    FROM_ENGINE,
    MOST_FROM_ENGINE,
    PROTOCOL,
    TERMS,
    DraftCall,
    Drafts,
    FromEngine,
    ProposeLimits,
    SentDraft,
)
from prolepsis.engine.drafting.remote.proposer import RemoteProposer, RemoteSettings
from prolepsis.remote.propose.server import ProposeServer
from tests.engine.drafting.sequences import VOCAB
from tests.waiting import ended

KEY = SharedKey(b"k" * 32)
VOCABULARY = b"v" * 32


class FakeConnection:
    """Keeps what is sent, and hands out what a test puts into `answers`; an exception there is raised."""

    def __init__(self, terms: ProposeLimits | None = None) -> None:
        self.terms = terms or ProposeLimits()
        self.sent: list[FromEngine] = []
        self.answers: list[Drafts | Exception] = []
        self.on_wait: Callable[[float], None] = lambda _: None
        self._reader = FrameReader(MOST_FROM_ENGINE)

    def send(self, frames: bytes) -> None:
        self.sent += map(FROM_ENGINE.decode, self._reader.feed(bytes(frames)))

    def receive(self, wait_s: float = 0.0) -> list[Drafts]:
        if wait_s:
            self.on_wait(wait_s)
        found: list[Drafts] = []
        while self.answers:
            answer = self.answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            found.append(answer)
        return found

    def take(self) -> list[FromEngine]:
        """Return what was sent since the last call."""
        taken, self.sent = self.sent, []
        return taken

    @property
    def round(self) -> int:
        """The last one that was asked for."""
        return next(message.round for message in reversed(self.sent) if isinstance(message, DraftCall))


class FakeLink:
    """A link whose connection is what a test says."""

    def __init__(self, connection: FakeConnection | None = None) -> None:
        self.made = connection
        self.losses: list[str] = []

    def connection(self) -> FakeConnection | None:
        return self.made

    def lose(self, reason: object) -> None:
        self.losses.append(str(reason))
        self.made = None

    def close(self) -> None:
        self.made = None


def sent(number: int, prefix: int, *tokens: int, draft: Draft | None = None) -> SentDraft:
    return SentDraft(number, prefix, draft or chain(tokens, "remote"))


@contextmanager
def serving(server: ProposeServer, tls: ssl.SSLContext | None = None) -> Iterator[int]:
    """Run a propose server on loopback, in a thread; yield its port."""
    port: Future[int] = Future()
    stop: Future[Callable[[], object]] = Future()

    async def run() -> None:
        listening = await server.listen("127.0.0.1", 0, tls)
        drafting = asyncio.ensure_future(server.run())
        loop = asyncio.get_running_loop()
        stop.set_result(lambda: loop.call_soon_threadsafe(drafting.cancel))
        port.set_result(listening.sockets[0].getsockname()[1])
        async with listening:
            await asyncio.gather(drafting, return_exceptions=True)

    thread = threading.Thread(target=asyncio.run, args=(run(),), daemon=True)
    thread.start()
    try:
        yield port.result(10)
    finally:
        stop.result(10)()
        ended(thread)


@contextmanager
def rude(answer: Callable[[FromEngine], Sequence[bytes]]) -> Iterator[int]:
    """Run a server that shakes hands as it should and then sends what `answer` says to each message."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=_serve_rudely, args=(listening, answer), daemon=True)
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            listening.shutdown(socket.SHUT_RDWR)
        ended(thread)  # not after a failed test, which may hold its connection open


def _serve_rudely(listening: socket.socket, answer: Callable[[FromEngine], Sequence[bytes]]) -> None:
    while True:
        try:
            connection, _ = listening.accept()
        except OSError:  # the test is over
            return
        with connection:
            reader = FrameReader(MOST_FROM_ENGINE)
            try:
                steps = handshake.listening(KEY, PROTOCOL, lambda _: TERMS.encode_body(ProposeLimits()))
                handshake.shake_hands_now(connection, steps)
                connection.settimeout(None)
                while data := connection.recv(1 << 16):
                    for body in reader.feed(data):
                        for piece in answer(FROM_ENGINE.decode(body)):
                            connection.sendall(piece)
            except (OSError, EOFError, ProtocolError):  # the engine has had enough, or has another key
                continue


def proposer_at(port: int, *, wait_s: float = 0.0, key: SharedKey = KEY, vocab_size: int = VOCAB) -> RemoteProposer:
    """Return a proposer that is connected, or whose first attempt has failed."""
    link = Link(address(port, key).connect)
    proposer = RemoteProposer(link, key, vocab_size, RemoteSettings(wait_s=wait_s))
    assert link.connection() is None
    link.join()
    return proposer


def address(port: int, key: SharedKey = KEY) -> RemoteAddress:
    return RemoteAddress("127.0.0.1", port, key, VOCABULARY)


class RawEngine:
    """An engine that has shaken hands and says what a test wants."""

    def __init__(self, port: int) -> None:
        self._connection = address(port).connect()
        self.last = Drafts(0, ())

    def say(self, *messages: FromEngine) -> Drafts | None:
        """Send messages at once and return the answer; None if the server ends the connection."""
        try:
            self._connection.send(b"".join(map(FROM_ENGINE.encode, messages)))
            for _ in range(6):  # a part of an answer is none
                if answers := self._connection.receive(10.0):
                    break
        except ConnectionLost:
            return None
        [self.last] = answers
        return self.last

    def close(self) -> None:
        self._connection.close()
