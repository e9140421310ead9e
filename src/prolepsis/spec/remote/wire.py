"""The messages between an engine and a propose server, and their bytes; this file is the protocol.

   engine                         propose server
   Hello                     -->
                             <--  Challenge
   Proof                     -->
                             <--  Welcome | Refused, and the end
   Open, Extend, Forget      -->                      no answer
   Ask (a round)             -->
                             <--  Drafts               of this round; earlier ones without an answer are given up

A frame is the length of its body (4 bytes), its kind (1 byte) and the body, all little-endian. Bodies have fixed fields
and arrays of numbers, so that whatever arrives is either a message within bounds or a `ProtocolError`. Tokens travel as
ids, never as text.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass

from prolepsis.spec.draft import Draft

VERSION = 1
NONCE_BYTES = MAC_BYTES = DIGEST_BYTES = 32
SCOPE_BYTES = 16
MOST_NODES = 128
"""Most nodes of one draft."""
MOST_BUCKETS = 256
"""Calibration buckets that a remote proposer may use."""
MOST_SMALL = 512
"""Bytes of a body before the other side has proven who it is."""
MOST_FROM_ENGINE, MOST_FROM_SERVER = 8 << 20, 1 << 20
"""Bytes of a body after that."""
_MOST_REASON = 256

_FRAME = struct.Struct("<IB")
_HELLO = struct.Struct(f"<{NONCE_BYTES}sH")
_PROOF = struct.Struct(f"<{DIGEST_BYTES}s{MAC_BYTES}s")
_WELCOME = struct.Struct(f"<{MAC_BYTES}sIIH")
_OPEN = struct.Struct(f"<I{SCOPE_BYTES}sIddIQ")
_NUMBER = struct.Struct("<I")
_WISH = struct.Struct("<IH")
_DRAFT = struct.Struct("<IIH?")


class ProtocolError(Exception):
    """The other side sent what this protocol does not allow."""


@dataclass(frozen=True, slots=True)
class Hello:
    """The engine's first message."""

    nonce: bytes
    version: int = VERSION


@dataclass(frozen=True, slots=True)
class Challenge:
    nonce: bytes
    version: int = VERSION


@dataclass(frozen=True, slots=True)
class Proof:
    """The engine has the key; `vocabulary` is the digest of its tokens with their ids."""

    vocabulary: bytes
    mac: bytes


@dataclass(frozen=True, slots=True)
class Terms:
    """Limits of a server."""

    most_sequences: int = 1024
    """Open at once, of one engine."""
    most_tokens: int = 1 << 21
    """Most tokens of all sequences together."""
    most_draft_tokens: int = 32
    """Most tokens of one draft."""


@dataclass(frozen=True, slots=True)
class Welcome:
    """The server has the key too."""

    terms: Terms
    mac: bytes


@dataclass(frozen=True, slots=True)
class Refused:
    reason: str


@dataclass(frozen=True, slots=True)
class Open:
    """A sequence under a number that is used once; its tokens follow."""

    number: int
    scope: bytes
    """Stands for its cache salt, which it hides: what is learned under one scope is never drafted under another."""
    num_prompt_tokens: int
    temperature: float
    top_p: float
    top_k: int
    noise_key: int


@dataclass(frozen=True, slots=True)
class Extend:
    """The next tokens of an open sequence."""

    number: int
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Forget:
    """The sequence has ended."""

    number: int


@dataclass(frozen=True, slots=True)
class Ask:
    """Drafts are wanted for open sequences as they are now."""

    round: int
    wishes: tuple[tuple[int, int], ...]
    """Number of a sequence, most nodes of its draft."""


@dataclass(frozen=True, slots=True)
class SentDraft:
    """The draft of one sequence, behind its first `prefix` tokens."""

    number: int
    prefix: int
    draft: Draft


@dataclass(frozen=True, slots=True)
class Drafts:
    """The answer to a round and to all before it; sequences without a draft are left out."""

    round: int
    drafts: tuple[SentDraft, ...]


Message = Hello | Challenge | Proof | Welcome | Refused | Open | Extend | Forget | Ask | Drafts
_KINDS: tuple[type[Message], ...] = (Hello, Challenge, Proof, Welcome, Refused, Open, Extend, Forget, Ask, Drafts)
_FIXED = {Hello: _HELLO, Challenge: _HELLO, Proof: _PROOF, Open: _OPEN, Forget: _NUMBER}
"""Bodies that are their fields in order."""


def encode(message: Message) -> bytes:
    """Return a message as one frame."""
    body = _body(message)
    return _FRAME.pack(len(body), _KINDS.index(type(message))) + body


class FrameReader:
    """Cuts what arrives into messages; bodies have at most `most` bytes. Drafts are signed with `proposer`."""

    def __init__(self, most: int = MOST_SMALL, *, proposer: str = "") -> None:
        self.most = most
        self._proposer = proposer
        self._waiting = bytearray()

    def feed(self, data: bytes) -> Iterator[Message]:
        """Take bytes and yield the messages that are whole; raises `ProtocolError`."""
        self._waiting += data
        while len(self._waiting) >= _FRAME.size:
            length, kind = _FRAME.unpack_from(self._waiting)
            if length > self.most:
                raise ProtocolError(f"a message of {length} bytes; allowed: {self.most}")
            end = _FRAME.size + length
            if len(self._waiting) < end:
                return
            body = bytes(self._waiting[_FRAME.size : end])
            del self._waiting[:end]
            yield _decode(kind, body, self._proposer)


def _body(message: Message) -> bytes:
    match message:
        case Hello() | Challenge() | Proof() | Open() | Forget():
            return _FIXED[type(message)].pack(*astuple(message))
        case Welcome():
            return _WELCOME.pack(message.mac, *astuple(message.terms))
        case Refused():
            return message.reason.encode()[:_MOST_REASON]
        case Extend():
            return _NUMBER.pack(message.number) + struct.pack(f"<{len(message.tokens)}I", *message.tokens)
        case Ask():
            return _NUMBER.pack(message.round) + b"".join(_WISH.pack(*wish) for wish in message.wishes)
        case Drafts():
            return _NUMBER.pack(message.round) + b"".join(map(_draft_bytes, message.drafts))


def _decode(kind: int, body: bytes, proposer: str) -> Message:
    if kind >= len(_KINDS):
        raise ProtocolError(f"a message of kind {kind}; allowed: 0 to {len(_KINDS) - 1}")
    expected = _KINDS[kind]
    try:
        return _message(expected, body, proposer)
    except (struct.error, ValueError) as error:
        raise ProtocolError(f"{expected.__name__} of {len(body)} bytes: {error}") from error


def _message(kind: type[Message], body: bytes, proposer: str) -> Message:
    if (layout := _FIXED.get(kind)) is not None:
        return kind(*layout.unpack(body))
    if kind is Welcome:
        mac, *terms = _WELCOME.unpack(body)
        return Welcome(Terms(*terms), mac)
    if kind is Refused:
        return Refused(body[:_MOST_REASON].decode(errors="replace"))
    (first,) = _NUMBER.unpack_from(body)
    rest = body[_NUMBER.size :]
    if kind is Extend:
        return Extend(first, struct.unpack(f"<{len(rest) // _NUMBER.size}I", rest))
    if kind is Ask:
        return Ask(first, tuple(_WISH.iter_unpack(rest)))
    return Drafts(first, tuple(_drafts(rest, proposer)))


def _draft_bytes(sent: SentDraft) -> bytes:
    draft = sent.draft
    size = len(draft.tokens)
    buckets = [min(bucket, MOST_BUCKETS - 1) for bucket in draft.buckets or (draft.bucket,) * size]
    return (
        _DRAFT.pack(sent.number, sent.prefix, size, bool(draft.survival))
        + struct.pack(f"<{size}I{size}h{size}B", *draft.tokens, *draft.parents, *buckets)
        + struct.pack(f"<{len(draft.survival)}f", *draft.survival)
    )


def _drafts(body: bytes, proposer: str) -> Iterator[SentDraft]:
    start = 0
    while start < len(body):
        number, prefix, size, has_survival = _DRAFT.unpack_from(body, start)
        if not 0 < size <= MOST_NODES:
            raise ProtocolError(f"a draft of {size} nodes; allowed: 1 to {MOST_NODES}")
        layout = struct.Struct(f"<{size}I{size}h{size}B{size * has_survival}f")
        values: Sequence[float] = layout.unpack_from(body, start + _DRAFT.size)
        tokens, parents, buckets = (values[i * size : (i + 1) * size] for i in range(3))
        draft = Draft(tokens, parents, proposer, values[3 * size :], buckets=buckets)  # type: ignore[arg-type]
        yield SentDraft(number, prefix, draft)
        start += _DRAFT.size + layout.size
