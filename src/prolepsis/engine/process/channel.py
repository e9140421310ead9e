"""Batches of messages over a socket: eight bytes of length, then the batch, pickled."""

import asyncio
import pickle
import socket
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

_LENGTH_BYTES = 8

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def write_now(connection: socket.socket, *messages: object) -> None:
    """Send one batch and wait for it; for a side that has no event loop yet."""
    connection.sendall(_batch(messages))


def read_now(connection: socket.socket) -> Sequence[object]:
    """Wait for one batch; raises `EOFError` if the other side is gone."""
    length = int.from_bytes(_read_exactly(connection, _LENGTH_BYTES))
    return _messages(_read_exactly(connection, length))


class Channel:
    """One end of a connection, on an event loop. What is sent in one turn of the loop travels as one batch.

    Nothing is lost of what is sent before `open`. There is no bound on what waits: events come no faster than tokens.
    """

    def __init__(self, connection: socket.socket | Streams) -> None:
        self._connection = connection
        self._waiting: deque[object] = deque()
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._flushing = False

    async def open(self) -> None:
        """Begin to send and to receive, on the running event loop."""
        if isinstance(self._connection, socket.socket):
            self._connection = await asyncio.open_connection(sock=self._connection)
        self._reader, self._writer = self._connection
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._flush()

    def put(self, message: object) -> None:
        """Send a message with the next batch, from any thread."""
        self._waiting.append(message)

    def send(self, message: object) -> None:
        """Send a message at the end of this turn of the loop; from another thread, as soon as the loop has time."""
        self._waiting.append(message)
        if self._loop is None or self._flushing:
            return
        self._flushing = True
        if threading.get_ident() == self._thread:
            self._loop.call_soon(self._flush)
        else:
            self._loop.call_soon_threadsafe(self._flush)

    async def receive(self) -> Sequence[object]:
        """Return the next batch; raises `EOFError` when the other side is gone."""
        assert self._reader is not None, "the channel is open"
        try:
            length = int.from_bytes(await self._reader.readexactly(_LENGTH_BYTES))
            return _messages(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, OSError) as error:
            raise EOFError("the other process is gone") from error

    async def close(self) -> None:
        """Send what waits and close the connection."""
        if self._writer is None:
            (self._connection if isinstance(self._connection, socket.socket) else self._connection[1]).close()
            return
        self._flush()
        self._writer.close()
        with suppress(OSError):  # the other side closed first
            await self._writer.wait_closed()

    def abort(self) -> None:
        """End an open connection at once, with what waits; `receive` then raises `EOFError`."""
        assert self._writer is not None, "the channel is open"
        self._writer.transport.abort()

    def _flush(self) -> None:
        self._flushing = False  # first: what is put from here on asks for another flush
        batch = [self._waiting.popleft() for _ in range(len(self._waiting))]
        assert self._writer is not None, "the channel is open"
        if batch and not self._writer.is_closing():
            self._writer.write(_batch(batch))


def _batch(messages: Sequence[object]) -> bytes:
    body = pickle.dumps(list(messages), protocol=pickle.HIGHEST_PROTOCOL)
    return len(body).to_bytes(_LENGTH_BYTES) + body


def _messages(body: bytes) -> Sequence[object]:
    messages = pickle.loads(body)  # noqa: S301  # the other side is this program: the socket has no name, or it has proven it
    assert isinstance(messages, list)
    return messages


def _read_exactly(connection: socket.socket, length: int) -> bytes:
    parts = bytearray()
    while len(parts) < length:
        part = connection.recv(length - len(parts))
        if not part:
            raise EOFError("the other process is gone")
        parts += part
    return bytes(parts)
