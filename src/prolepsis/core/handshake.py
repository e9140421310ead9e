"""The handshake of two processes: both prove that they have one key before any message is read or sent.

   connecting side                listening side
   Hello                     -->
                             <--  Challenge
   Proof                     -->
                             <--  Welcome
   either may say Refused, and ends

The side that connects proves first, so that a stranger who connects learns nothing that depends on the key. A proof
is an HMAC-SHA256 over the protocol with its version, the side that proves, random numbers of both sides and what the
side says of itself (`facts`), so no proof can be shown a second time, turned around, or used for other facts; the
second proof covers the first. After it the connection itself is trusted; where others are on the network, TLS keeps
them out (decision 0031).
"""

import asyncio
import hmac
import socket
import time
from collections.abc import Callable, Generator
from pathlib import Path
from secrets import token_bytes
from typing import Annotated, TypeVar

from msgspec import Meta

from prolepsis.core.codec import Codec, ProtocolError, read_frame, receive_frame
from prolepsis.core.errors import ConfigError
from prolepsis.core.files import read_text
from prolepsis.core.tagged import Tagged

HANDSHAKE_S = 5.0
"""How long a handshake may take."""
LEAST_KEY = 32
"""Characters."""
MOST_BYTES = 2048
"""Bytes of a message before the other side has proven who it is."""
MOST_FACTS = 1024
_NUM_BYTES = 32
_MOST_TEXT = 256

_Text = Annotated[str, Meta(max_length=_MOST_TEXT)]
_Number = Annotated[bytes, Meta(min_length=_NUM_BYTES, max_length=_NUM_BYTES)]
_Facts = Annotated[bytes, Meta(max_length=MOST_FACTS)]

Steps = Generator[bytes, bytes, tuple[bytes, bytes]]
"""One side of a handshake: it yields frames to send, is sent the bodies that arrive, and returns the last frame to
send and the proven facts of the other side. Raises `ProtocolError`, and `PermissionError` where it is refused."""


class SharedKey:
    """A key that two sides share. Each use of it has a label of its own."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    @classmethod
    def read(cls, file: Path, param: str) -> "SharedKey":
        """Read the key in a file; raises `ConfigError` for a short one."""
        text = read_text(file, "key file").strip()
        if len(text) < LEAST_KEY:
            made_by = "openssl rand -hex 32"
            message = (
                f"key file {file} holds {len(text)} characters; allowed: at least {LEAST_KEY}, as `{made_by}` makes"
            )
            raise ConfigError(message, param=param)
        return cls(text.encode())

    def digest(self, label: str, data: bytes) -> bytes:
        """Return 32 bytes that only those can make who have the key."""
        return hmac.digest(self._secret, f"prolepsis {label}\0".encode() + data, "sha256")


class Hello(Tagged, frozen=True):
    protocol: _Text  # name and version
    nonce: _Number


class Challenge(Tagged, frozen=True):
    nonce: _Number


class Proof(Tagged, frozen=True):
    """The connecting side has the key."""

    facts: _Facts
    mac: _Number


class Welcome(Tagged, frozen=True):
    """The listening side has the key too."""

    facts: _Facts
    mac: _Number


class HandshakeRefused(Tagged, frozen=True):
    reason: _Text


Message = Hello | Challenge | Proof | Welcome | HandshakeRefused
_CODEC = Codec[Message](Message)
_T = TypeVar("_T", Hello, Challenge, Proof, Welcome)


def connecting(key: SharedKey, protocol: str, facts: bytes = b"") -> Steps:
    """Do the handshake of the side that connects, which says `facts` of itself."""
    hello = Hello(protocol, token_bytes(_NUM_BYTES))
    challenge = _expected(Challenge, (yield _CODEC.encode(hello)))
    seen = hello.nonce + challenge.nonce
    own = key.digest(f"{protocol} connecting", seen + facts)
    welcome = _expected(Welcome, (yield _CODEC.encode(Proof(facts, own))))
    _check(welcome.mac, key.digest(f"{protocol} listening", seen + own + welcome.facts))
    return b"", welcome.facts


def listening(key: SharedKey, protocol: str, answer: Callable[[bytes], bytes]) -> Steps:
    """Do the handshake of the side that listens. `answer` takes the proven facts of the other side and returns those
    of this one, or raises `ProtocolError` with the reason to refuse it."""
    hello = _expected(Hello, (yield b""))
    if hello.protocol != protocol:
        raise ProtocolError(f"the connecting side speaks {hello.protocol!r}; allowed: {protocol!r}")
    challenge = Challenge(token_bytes(_NUM_BYTES))
    proof = _expected(Proof, (yield _CODEC.encode(challenge)))
    seen = hello.nonce + challenge.nonce
    _check(proof.mac, key.digest(f"{protocol} connecting", seen + proof.facts))
    facts = answer(proof.facts)
    mac = key.digest(f"{protocol} listening", seen + proof.mac + facts)
    return _CODEC.encode(Welcome(facts, mac)), proof.facts


def refusal(reason: object) -> bytes:
    """Return the frame by which a side refuses the other one."""
    return _CODEC.encode(HandshakeRefused(str(reason)[:_MOST_TEXT]))


def shake_hands_now(connection: socket.socket, steps: Steps, within_s: float = HANDSHAKE_S) -> bytes:
    """Do a handshake over a socket, and wait for it; return the facts of the other side.

    Raises `ProtocolError`, `EOFError`, and `OSError`: `TimeoutError`, or `PermissionError` where it is refused.
    """
    deadline = time.monotonic() + within_s
    try:
        frame = next(steps)
        while True:
            connection.sendall(frame)
            frame = steps.send(receive_frame(connection, MOST_BYTES, deadline))
    except StopIteration as end:
        last, facts = _ended(end)
        connection.sendall(last)
        return facts
    except ProtocolError as error:
        connection.sendall(refusal(error))
        raise


async def shake_hands(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, steps: Steps, within_s: float = HANDSHAKE_S
) -> bytes:
    """Do as `shake_hands_now`, on an event loop."""
    try:
        async with asyncio.timeout(within_s):
            frame = next(steps)
            while True:
                writer.write(frame)
                frame = steps.send(await read_frame(reader, MOST_BYTES))
    except StopIteration as end:
        last, facts = _ended(end)
        writer.write(last)
        return facts
    except ProtocolError as error:
        writer.write(refusal(error))
        raise


def _ended(end: StopIteration) -> tuple[bytes, bytes]:
    value: tuple[bytes, bytes] = end.value
    return value


def _expected(kind: type[_T], body: bytes) -> _T:
    message = _CODEC.decode(body)
    if isinstance(message, HandshakeRefused):
        raise PermissionError(f"refused: {message.reason}")
    if not isinstance(message, kind):
        raise ProtocolError(f"{type(message).__name__} in a handshake; allowed here: {kind.__name__}")
    return message


def _check(given: bytes, expected: bytes) -> None:
    if not hmac.compare_digest(given, expected):
        raise ProtocolError("the other side has another key")
