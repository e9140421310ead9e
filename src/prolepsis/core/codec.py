"""Messages between processes as bytes: MessagePack in frames, decoded as what is declared, or refused.

Messages are `Tagged` values of one union. Their fields hold dataclasses of ours, which are declared once, plain values
and collections, errors of `core.errors` and settings of pydantic. Bytes decode to a message with these types and
bounds, or raise `ProtocolError`; nothing that arrives is run. Decoding takes memory in proportion to its bytes.
A frame is the length of a message (4 bytes, the highest first) and the message.
"""

import asyncio
import socket
import time
from collections.abc import Iterator, Mapping
from inspect import Parameter, signature
from types import UnionType
from typing import Any, Generic, TypeVar, Union, get_args, get_type_hints

import msgspec
from pydantic import BaseModel, TypeAdapter

from prolepsis.core import errors
from prolepsis.core.errors import ProlepsisError

M = TypeVar("M")

HEADER_BYTES = 4


class ProtocolError(Exception):
    """The other side sent what its protocol does not allow, or a message cannot be sent."""


class Codec(Generic[M]):
    """Encodes and decodes the messages of one union."""

    def __init__(self, messages: type[M] | UnionType) -> None:
        self._encoder = msgspec.msgpack.Encoder(enc_hook=_to_plain)
        self._decoder: msgspec.msgpack.Decoder[M] = msgspec.msgpack.Decoder(messages, dec_hook=_from_plain)
        self._allowed = ", ".join(message.__name__ for message in get_args(messages) or (messages,))

    def encode(self, message: M) -> bytes:
        """Return a message as one frame; raises `ProtocolError` for text or numbers that cannot travel."""
        body = self.encode_body(message)
        return len(body).to_bytes(HEADER_BYTES) + body

    def encode_body(self, message: M) -> bytes:
        """Return a message without the length of its frame."""
        try:
            return self._encoder.encode(message)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise ProtocolError(f"{type(message).__name__} cannot be sent: {error}") from error

    def decode(self, body: bytes) -> M:
        """Return the message of a frame's body; raises `ProtocolError`."""
        try:
            return self._decoder.decode(body)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            message = f"{len(body)} bytes that are no message: {error}; allowed: {self._allowed}"
            raise ProtocolError(message) from error


class FrameReader:
    """Cuts what arrives into frames, whose bodies have at most `most` bytes."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._waiting = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Take bytes and yield whole bodies; raises `ProtocolError` for one that is too long, before it has come."""
        self._waiting += data
        while len(self._waiting) >= HEADER_BYTES:
            end = HEADER_BYTES + body_length(self._waiting[:HEADER_BYTES], self.most)
            if len(self._waiting) < end:
                return
            body = bytes(self._waiting[HEADER_BYTES:end])
            del self._waiting[:end]
            yield body


async def read_frame(reader: asyncio.StreamReader, most: int) -> bytes:
    """Return the body of the next frame; raises `EOFError`, `OSError` and `ProtocolError`."""
    return await reader.readexactly(body_length(await reader.readexactly(HEADER_BYTES), most))


def receive_frame(connection: socket.socket, most: int, deadline: float) -> bytes:
    """Wait for a frame until `deadline` (of `time.monotonic`); raises as `read_frame`, in time `TimeoutError`."""
    length = body_length(_receive(connection, HEADER_BYTES, deadline), most)
    return _receive(connection, length, deadline)


def body_length(header: bytes | bytearray, most: int) -> int:
    """Return the length of a body that a header announces; raises `ProtocolError` for one of more than `most` bytes."""
    length = int.from_bytes(header)
    if length > most:
        raise ProtocolError(f"a message of {length} bytes; allowed: {most}")
    return length


def _receive(connection: socket.socket, length: int, deadline: float) -> bytes:
    parts = bytearray()
    while len(parts) < length:
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        part = connection.recv(length - len(parts))
        if not part:
            raise EOFError("the other side closed the connection")
        parts += part
    return bytes(parts)


def _error_form(kind: type[ProlepsisError]) -> type[msgspec.Struct]:
    """Return the form in which errors of a class travel: its message, and what its constructor takes by name."""
    hints = get_type_hints(kind.__init__)
    given = [option for option in signature(kind.__init__).parameters.values() if option.kind is Parameter.KEYWORD_ONLY]
    fields: list[tuple[str, Any, Any]] = [(option.name, hints[option.name], option.default) for option in given]
    return msgspec.defstruct(kind.__name__, [("message", str), *fields], frozen=True, tag=True, omit_defaults=True)


_ERRORS: Mapping[type[ProlepsisError], type[msgspec.Struct]] = {
    kind: _error_form(kind)
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, ProlepsisError)
}
_ERROR_OF_FORM = {form: kind for kind, form in _ERRORS.items()}
_PLAIN = TypeAdapter[object](object)
_ANY_ERROR: Any = Union[tuple(_ERRORS.values())]  # noqa: UP007


def _to_plain(value: object) -> object:
    """Return what stands for a value that MessagePack does not have."""
    if isinstance(value, ProlepsisError):
        form = next(_ERRORS[kind] for kind in type(value).__mro__ if kind in _ERRORS)  # of others: the nearest of ours
        _, *given = msgspec.structs.fields(form)
        text = str(value).encode(errors="replace").decode()
        return form(text, *(getattr(value, field.name, field.default) for field in given))
    if isinstance(value, BaseModel):
        return _PLAIN.dump_python(value.model_dump(), mode="json")  # passwords travel, which its own JSON hides
    raise TypeError(f"a {type(value).__name__} does not travel")


def _from_plain(kind: type, value: Any) -> object:
    """Return the value that `_to_plain` stood something for."""
    if issubclass(kind, ProlepsisError):
        form = msgspec.convert(value, _ANY_ERROR)
        message, *given = msgspec.structs.astuple(form)
        _, *names = form.__struct_fields__
        error = _ERROR_OF_FORM[type(form)](message, **dict(zip(names, given, strict=True)))
        if isinstance(error, kind):
            return error
        raise ValueError(f"a {type(error).__name__} in place of a {kind.__name__}")
    if issubclass(kind, BaseModel):
        return kind.model_validate(value)
    raise TypeError(f"a {kind.__name__} does not travel")
