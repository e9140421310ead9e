"""The listening socket; it answers clients also where the process has no descriptor left for their connections."""

import asyncio
import errno
import os
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from prolepsis.control.web.refusals import Refused, no_descriptor_left

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
