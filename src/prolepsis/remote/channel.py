"""Messages over a connection between a front end and a host. Those of one turn of an event loop leave together."""

import asyncio
import socket
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Generic, TypeVar

from prolepsis.core.codec import Codec, FrameReader, receive_frame
from prolepsis.remote.messages import ToFrontEnd, ToHost

MOST_BYTES = 128 << 20  # bytes of a message; a tokenizer takes tens of MB
_READ_BYTES = 1 << 18
_FOREVER_S = 1e6

Connection = socket.socket | tuple[asyncio.StreamReader, asyncio.StreamWriter]
S = TypeVar("S")
R = TypeVar("R")

TO_HOST = Codec[ToHost](ToHost)
TO_FRONT_END = Codec[ToFrontEnd](ToFrontEnd)


def write_now(connection: socket.socket, codec: Codec[S], message: S) -> None:
    """Send a message and wait for it; for a side that has no event loop yet."""
    connection.sendall(codec.encode(message))


def read_now(connection: socket.socket, codec: Codec[R]) -> R:
    """Wait for a message; raises `EOFError` if the other side is gone."""
    return codec.decode(receive_frame(connection, MOST_BYTES, time.monotonic() + _FOREVER_S))


def front_end_channel(connection: Connection) -> "Channel[ToHost, ToFrontEnd]":
    return Channel(connection, TO_HOST, TO_FRONT_END)


def host_channel(connection: Connection) -> "Channel[ToFrontEnd, ToHost]":
    return Channel(connection, TO_FRONT_END, TO_HOST)


class Channel(Generic[S, R]):
    """One end of a connection, on an event loop.

    Nothing is lost of what is sent before `open`. There is no bound on what waits: events come no faster than tokens.
    """

    def __init__(self, connection: Connection, sends: Codec[S], receives: Codec[R]) -> None:
        self._connection = connection
        self._sends = sends
        self._receives = receives
        self._frames = FrameReader(MOST_BYTES)
        self._waiting: deque[bytes] = deque()
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._flushing = False

    async def open(self) -> None:
        """Begin to send and to receive, on the running event loop; an open channel stays so."""
        if self._streams is None:
            is_socket = isinstance(self._connection, socket.socket)
            self._streams = (
                await asyncio.open_connection(sock=self._connection) if is_socket else self._connection  # type: ignore
            )
            self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
            self._flush()

    def send(self, message: S) -> None:
        """Send a message at the end of this turn of the loop; from another thread, as soon as the loop has time.

        Raises `ProtocolError` for a message that cannot travel.
        """
        self._waiting.append(self._sends.encode(message))
        if self._loop is None or self._flushing:
            return
        self._flushing = True
        if threading.get_ident() == self._thread:
            self._loop.call_soon(self._flush)
        else:
            self._loop.call_soon_threadsafe(self._flush)

    async def receive(self) -> Sequence[R]:
        """Return the next messages; raises `EOFError` when the other side is gone, and `ProtocolError`."""
        reader, _ = self._opened
        messages: list[R] = []
        while not messages:
            try:
                data = await reader.read(_READ_BYTES)
            except OSError as error:
                raise EOFError("the other side is gone") from error
            if not data:
                raise EOFError("the other side is gone")
            messages = [self._receives.decode(body) for body in self._frames.feed(data)]
        return messages

    async def close(self) -> None:
        """Send what waits and close the connection."""
        if self._streams is None:
            (self._connection if isinstance(self._connection, socket.socket) else self._connection[1]).close()
            return
        self._flush()
        _, writer = self._streams
        writer.close()
        with suppress(OSError):  # the other side closed first
            await writer.wait_closed()

    def abort(self) -> None:
        """End an open connection at once, with what waits; `receive` then raises `EOFError`."""
        _, writer = self._opened
        writer.transport.abort()

    @property
    def _opened(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        assert self._streams is not None, "the channel is open"
        return self._streams

    def _flush(self) -> None:
        self._flushing = False  # first: what is sent from here on asks for another flush
        _, writer = self._opened
        batch = [self._waiting.popleft() for _ in range(len(self._waiting))]
        if batch and not writer.is_closing():
            writer.write(b"".join(batch))
