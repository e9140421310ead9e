"""What engines and propose servers send arrives as it was sent; what is out of bounds is refused."""

from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prolepsis.core.codec import ProtocolError
from prolepsis.engine.drafting.draft import Draft, chain
from prolepsis.engine.drafting.remote.messages import (
    FROM_ENGINE,
    FROM_SERVER,
    TERMS,
    DraftCall,
    Drafts,
    Extend,
    Forget,
    FromEngine,
    Open,
    ProposeLimits,
    SentDraft,
)

TREE = Draft((5, 7, 2**32 - 1), (-1, 0, -1), "suffix", (0.5, 0.1, 0.3), buckets=(0, 255, 3))


@pytest.mark.parametrize(
    "message",
    [
        Open(1, b"s" * 16, 40, 0.8, 0.95, 50, 2**64 - 1),
        Extend(1, tuple(range(3000))),
        Extend(1, ()),
        Forget(7),
        DraftCall(3, ((1, 16), (2, 128))),
    ],
)
def test_engines_messages_arrive_as_they_were_sent(message: FromEngine) -> None:
    assert FROM_ENGINE.decode(FROM_ENGINE.encode_body(message)) == message


def test_servers_messages_arrive_as_they_were_sent() -> None:
    drafts = Drafts(3, (SentDraft(1, 40, TREE), SentDraft(2, 9, chain((4,), "suffix", bucket=3))))
    for answer in (drafts, Drafts(4, ())):
        assert FROM_SERVER.decode(FROM_SERVER.encode_body(answer)) == answer
    assert TERMS.decode(TERMS.encode_body(ProposeLimits(1, 2, 3))) == ProposeLimits(1, 2, 3)


@given(st.binary(max_size=200))
def test_any_bytes_are_messages_or_an_error(body: bytes) -> None:
    for codec in (FROM_ENGINE, FROM_SERVER, TERMS):
        with suppress(ProtocolError):
            codec.decode(body)


@pytest.mark.parametrize(
    "fields",
    [
        {"type": "Drafts", "round": -1, "drafts": []},
        {"type": "Drafts", "round": 1, "drafts": [{"number": 1, "prefix": -1, "draft": msgspec.to_builtins(TREE)}]},
        {"type": "Drafts", "round": 1, "drafts": [{"number": 1, "prefix": 1, "draft": {"tokens": "ab"}}]},
        {"type": "Drafts", "round": 1},
    ],
)
def test_what_is_out_of_bounds_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ProtocolError):
        FROM_SERVER.decode(msgspec.msgpack.encode(fields))
