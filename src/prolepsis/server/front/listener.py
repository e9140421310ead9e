"""How the server listens: keys for its address, TLS files, the number of connections; and the listening socket."""

import asyncio
import errno
import ipaddress
import os
import resource
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import structlog

from prolepsis.control.web.refusals import Refused, no_descriptor_left
from prolepsis.core.config import ServerConfig
from prolepsis.core.errors import ConfigError
from prolepsis.core.network import server_tls
from prolepsis.server.front.keys import Keys

log = structlog.get_logger(__name__)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches `host`; a name other than localhost may mean anything."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_exposure(config: ServerConfig, keys: Keys) -> None:
    """Raise `ConfigError` where others than this machine could ask and no key is configured."""
    if not keys.required and not is_loopback(config.host):
        raise ConfigError(
            f"host is {config.host}, which others can reach, and there is no API key; create one with "
            "`prolepsis keys create`, name its file with --keys-file, or listen on 127.0.0.1",
            param="keys_file",
        )


def announce(config: ServerConfig, keys: Keys) -> None:
    """Say in the log what protects this server."""
    if not keys.required:
        log.info("development_mode", detail="no API key is configured: every user of this machine may do everything")
    elif not config.tls_certificate and not is_loopback(config.host):
        log.warning("no_tls", detail="API keys arrive in clear unless something in front of this server ends TLS")


def check_tls(config: ServerConfig) -> None:
    """Raise `ConfigError` for a certificate or key that cannot be used."""
    server_tls(config.tls_certificate, config.tls_key)


_OTHER_FILES = 64
"""Descriptors left to what the server opens later: files, the database, surplus connections."""
_MOST_BY_DEFAULT = 4096


def connection_limit(config: ServerConfig) -> int:
    """Return how many connections may be open: as configured, but at most what the process has descriptors for."""
    wanted = config.limits.max_connections or _MOST_BY_DEFAULT
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    allowed = min(wanted, max(1, soft - len(os.listdir("/dev/fd")) - _OTHER_FILES))
    if config.limits.max_connections and allowed < wanted:
        log.warning("max_connections_lowered", to=allowed, given=wanted, open_files=soft)
    return allowed


NUM_SPARES = 16
HOLD_S = 2.0
"""How long the request of a refused client is read."""
_MOST_READ = 65536
MOST_A_ROUND = 16
"""New connections in one round of the event loop; asyncio would take thousands before it turns to the others."""


class Listener(socket.socket):
    """A listening socket for asyncio that keeps spare descriptors, so that a client gets an answer instead of waiting.

    asyncio would leave clients in the kernel's queue, and try again every second.
    """

    def __init__(self, family: int, kind: int, protocol: int, *, tls: bool = False) -> None:
        """`tls`: clients expect TLS, and are closed without a reply."""
        super().__init__(family, kind, protocol)
        self.on_refusal: Callable[[Refused], None] = lambda refused: None
        self._tls = tls
        self._num_accepted = 0
        """Connections accepted in this round of the event loop."""
        self._held: deque[_Held] = deque()
        self._spares = [os.open(os.devnull, os.O_RDONLY) for _ in range(NUM_SPARES)]

    def accept(self) -> tuple[socket.socket, Any]:
        """Return the next connection that can be served; raises `BlockingIOError` where there is none in this round."""
        if self._num_accepted >= MOST_A_ROUND:
            raise BlockingIOError
        if not self._num_accepted:
            asyncio.get_running_loop().call_soon(self._renew_round)
        self._num_accepted += 1
        try:
            return super().accept()
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
        if not self._spares and self._held:
            self._held[0].end()
        if self._spares:
            os.close(self._spares.pop())
        self._hold()
        raise BlockingIOError

    def close(self) -> None:
        while self._held:
            self._held[0].end()
        while self._spares:
            os.close(self._spares.pop())
        super().close()

    def _renew_round(self) -> None:
        self._num_accepted = 0

    def _hold(self) -> None:
        """Take a connection with the descriptor of a spare."""
        try:
            client, _ = super().accept()
        except OSError:
            self._renew_spare()
            return
        refused = no_descriptor_left()
        self.on_refusal(refused)
        client.setblocking(False)
        reply = b"" if self._tls else refused.last_reply()
        self._held.append(_Held(client, reply, self._let_go))

    def _let_go(self, held: "_Held") -> None:
        self._held.remove(held)
        self._renew_spare()

    def _renew_spare(self) -> None:
        with suppress(OSError):
            self._spares.append(os.open(os.devnull, os.O_RDONLY))


class _Held:
    """A connection that is refused when its request has come: a reply before the request is lost with the reset."""

    def __init__(self, client: socket.socket, reply: bytes, on_end: Callable[["_Held"], None]) -> None:
        self._client = client
        self._reply = reply
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(client.fileno(), self.end)
        self._timer = self._loop.call_later(HOLD_S, self.end)

    def end(self) -> None:
        self._timer.cancel()
        self._loop.remove_reader(self._client.fileno())
        with self._client, suppress(OSError):
            with suppress(BlockingIOError):
                self._client.recv(_MOST_READ)
            self._client.send(self._reply)
            self._client.shutdown(socket.SHUT_WR)
        self._on_end(self)
