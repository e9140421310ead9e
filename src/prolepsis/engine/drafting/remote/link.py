"""The engine's end of a connection to a propose server. Nothing here waits in the engine's thread unless asked to.

Connecting and the handshake run in a thread that ends with them. From then on the engine's own thread writes to and
reads from the socket, which never blocks: the kernel holds what is on its way.
"""

import select
import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from prolepsis.core.codec import FrameReader, ProtocolError
from prolepsis.core.config import EngineConfig
from prolepsis.core.errors import ConfigError
from prolepsis.core.extras import QUEUE
from prolepsis.core.handshake import SharedKey, connecting, shake_hands_now
from prolepsis.core.network import QUEUE_ADDRESS, client_tls, host_and_port
from prolepsis.engine.drafting.remote.messages import (
    FROM_SERVER,
    MOST_FROM_SERVER,
    PROTOCOL,
    TERMS,
    Drafts,
    ProposeLimits,
)

log = structlog.get_logger(__name__)

_CONNECT_S = 5.0  # for connecting; as long again for TLS, and for the handshake
_FIRST_BACKOFF_S, _LONGEST_BACKOFF_S = 0.1, 30.0
_MOST_UNSENT = 16 << 20  # bytes that wait because the server does not read: beyond, it is given up
_MOST_READ = 4 << 20
_PIECE = 1 << 16


class ConnectionLost(Exception):
    """The server was lost, or may have been lost."""


def shared_key(config: EngineConfig) -> SharedKey:
    """Return the key of engines and propose servers; raises `ConfigError` without one, or what their queue needs."""
    terms = config.remote_proposer
    if terms is None or terms.key is None:
        message = "remote_proposer.key is not set; allowed: a file that engine and propose server share"
        raise ConfigError(message, param="remote_proposer")
    if QUEUE_ADDRESS.fullmatch(terms.address or ""):
        QUEUE.require("a queue of remote_proposer.address", param="remote_proposer")
    return SharedKey.read(terms.key, "remote_proposer.key")


@dataclass(frozen=True, slots=True)
class RemoteAddress:
    """Address of a propose server, and the key by which it is known."""

    host: str
    port: int
    key: SharedKey
    vocabulary: bytes  # digest of the engine's tokens and their ids (`vocabulary_digest`)
    tls: ssl.SSLContext | None = None

    @classmethod
    def of(cls, config: EngineConfig, vocabulary: bytes) -> "RemoteAddress":
        """Return the configured one; raises `ConfigError` for a key or certificates of no use."""
        terms = config.remote_proposer
        place = host_and_port(terms.address or "") if terms is not None else None
        assert terms is not None, "it is loaded where it is configured"
        if place is None:
            message = "remote_proposer.address is not set; allowed: HOST:PORT of a propose server"
            raise ConfigError(message, param="remote_proposer")
        tls = None if terms.ca is None else client_tls(terms.ca, "remote_proposer.ca")
        return cls(*place, shared_key(config), vocabulary, tls)

    def connect(self) -> "Connection":
        """Connect and shake hands; raises `OSError`, `EOFError` and `ProtocolError`."""
        connection = socket.create_connection((self.host, self.port), _CONNECT_S)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if self.tls is not None:
                connection = self.tls.wrap_socket(connection, server_hostname=self.host)
            terms = TERMS.decode(shake_hands_now(connection, connecting(self.key, PROTOCOL, self.vocabulary)))
        except BaseException:
            connection.close()
            raise
        return Connection(connection, terms)


class Connection:
    def __init__(self, connection: socket.socket, terms: ProposeLimits) -> None:
        self.terms = terms
        self.is_good = False  # it has brought drafts
        connection.setblocking(False)
        self._socket = connection
        self._reader = FrameReader(MOST_FROM_SERVER)
        self._unsent = bytearray()

    def send(self, frames: bytes) -> None:
        """Send without waiting; what the kernel does not take goes with the next call. Raises `ConnectionLost`."""
        self._unsent += frames
        try:
            while self._unsent:
                del self._unsent[: self._socket.send(self._unsent)]
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            if len(self._unsent) > _MOST_UNSENT:
                raise ConnectionLost(f"it has not read {len(self._unsent)} bytes") from None
        except OSError as error:
            raise ConnectionLost(str(error)) from error

    def receive(self, wait_s: float = 0.0) -> list[Drafts]:
        """Return the answers that have arrived; if there are none, wait for at most `wait_s` seconds.

        Raises `ConnectionLost` and `ProtocolError`.
        """
        if wait_s > 0.0 and not (isinstance(self._socket, ssl.SSLSocket) and self._socket.pending()):
            waiting = select.poll()
            waiting.register(self._socket, select.POLLIN)
            waiting.poll(1000.0 * wait_s)
        received: list[Drafts] = []
        num_bytes = 0
        while data := self._read():
            num_bytes += len(data)
            if num_bytes > _MOST_READ:
                raise ProtocolError(f"more than {_MOST_READ} bytes at once")
            received += map(FROM_SERVER.decode, self._reader.feed(data))
        self.is_good |= bool(received)
        return received

    def _read(self) -> bytes:
        try:
            data = self._socket.recv(_PIECE)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return b""
        except OSError as error:
            raise ConnectionLost(str(error)) from error
        if not data:
            raise ConnectionLost("closed by the server")
        return data

    def close(self) -> None:
        self._socket.close()


class Link:
    """Keeps one connection: makes it when it is asked for, and again after a loss, with back-off.

    The back-off starts over only after a connection that brought drafts, so a server that accepts connections and then
    misbehaves is tried ever more rarely.
    """

    def __init__(self, connect: Callable[[], Connection], clock: Callable[[], float] = time.monotonic) -> None:
        """`connect` is called in a thread of its own (`RemoteAddress.connect`)."""
        self._connect = connect
        self._clock = clock
        self._lock = threading.Lock()
        self._made: Connection | None = None
        self._attempt: threading.Thread | None = None
        self._is_closed = False
        self._backoff_s = _FIRST_BACKOFF_S
        self._not_before = -float("inf")

    def connection(self) -> Connection | None:
        """Return the connection; if there is none, begin an attempt when it is time."""
        made = self._made
        if made is None and self._attempt is None and self._clock() >= self._not_before:
            with self._lock:
                if self._made is None and not self._is_closed:  # no attempt has ended well meanwhile
                    self._attempt = threading.Thread(target=self._try, name="prolepsis-remote-proposer", daemon=True)
                    self._attempt.start()
        return made

    def lose(self, reason: object) -> None:
        """Close the connection, which was lost or must not be used any longer."""
        with self._lock:
            lost, self._made = self._made, None
            if lost is not None:
                lost.close()
                if lost.is_good:
                    self._backoff_s = _FIRST_BACKOFF_S
                self._back_off(reason)

    def close(self) -> None:
        """Close the connection and make no other; an attempt in progress closes its own."""
        with self._lock:
            self._is_closed = True
            if self._made is not None:
                self._made.close()
                self._made = None

    def join(self) -> None:
        """Wait for an attempt that runs, in tests."""
        if (attempt := self._attempt) is not None:
            attempt.join()

    def _try(self) -> None:
        try:
            made = self._connect()
        except Exception as error:  # contained: without the server there are no remote drafts, and that is all
            with self._lock:
                self._back_off(error)
                self._attempt = None
            return
        with self._lock:
            if self._is_closed:
                made.close()
            else:
                self._made = made
                log.info("remote_proposer_connected", most_draft_tokens=made.terms.most_draft_tokens)
            self._attempt = None

    def _back_off(self, reason: object) -> None:
        log.warning("remote_proposer_lost", reason=str(reason), retry_s=self._backoff_s)
        self._not_before = self._clock() + self._backoff_s
        self._backoff_s = min(_LONGEST_BACKOFF_S, 2.0 * self._backoff_s)
