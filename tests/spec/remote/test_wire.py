from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prolepsis.spec.draft import Draft, chain
from prolepsis.spec.remote.wire import (
    MOST_FROM_ENGINE,
    Ask,
    Challenge,
    Drafts,
    Extend,
    Forget,
    FrameReader,
    Hello,
    Message,
    Open,
    Proof,
    ProtocolError,
    Refused,
    SentDraft,
    Terms,
    Welcome,
    encode,
)

TREE = Draft((5, 7, 2**32 - 1), (-1, 0, -1), "remote", (0.5, 0.25, 0.125), buckets=(0, 255, 3))
PLAIN = Draft((5,), (-1,), "remote", buckets=(9,))
MESSAGES: list[Message] = [
    Hello(b"n" * 32),
    Challenge(b"n" * 32),
    Proof(b"v" * 32, b"m" * 32),
    Welcome(Terms(1, 2, 3), b"m" * 32),
    Refused("the engine has another key"),
    Open(1, b"s" * 16, 40, 0.8, 0.95, 50, 2**64 - 1),
    Extend(1, tuple(range(3000))),
    Extend(1, ()),
    Forget(7),
    Ask(3, ((1, 16), (2, 128))),
    Drafts(3, (SentDraft(1, 40, TREE), SentDraft(2, 9, PLAIN))),
    Drafts(4, ()),
]


def read(data: bytes, size: int) -> list[Message]:
    reader = FrameReader(MOST_FROM_ENGINE, proposer="remote")
    return [message for i in range(0, len(data), size) for message in reader.feed(data[i : i + size])]


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_messages_arrive_as_they_were_sent_however_they_are_cut(size: int) -> None:
    assert read(b"".join(map(encode, MESSAGES)), size) == MESSAGES


def test_a_chain_travels_with_its_bucket() -> None:
    [message] = read(encode(Drafts(1, (SentDraft(1, 2, chain((4, 5), "suffix", bucket=3)),))), 99)
    assert isinstance(message, Drafts)
    assert message.drafts[0].draft == Draft((4, 5), (-1, 0), "remote", buckets=(3, 3))


@given(st.binary(max_size=200), st.integers(0, 11))
def test_any_bytes_are_messages_or_an_error(body: bytes, kind: int) -> None:
    data = len(body).to_bytes(4, "little") + bytes([kind]) + body
    with suppress(ProtocolError):
        [message] = read(data, 50)
        assert isinstance(message, Message)


def test_a_long_body_is_refused_before_it_has_arrived() -> None:
    with pytest.raises(ProtocolError, match="513 bytes; allowed: 512"):
        list(FrameReader().feed((513).to_bytes(4, "little") + b"\0"))
