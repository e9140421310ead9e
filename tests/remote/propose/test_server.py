"""Engines and a propose server over loopback: handshake, limits, rounds of several engines, tenants apart."""

import asyncio
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager

import pytest

from prolepsis.core.codec import HEADER_BYTES, FrameReader
from prolepsis.core.handshake import MOST_BYTES, SharedKey, connecting, refusal, shake_hands_now
from prolepsis.core.requests import SamplingParams
from prolepsis.engine.drafting.draft import Draft, chain
from prolepsis.engine.drafting.proposer import Proposer, SequenceView
from prolepsis.engine.drafting.proposers.suffix import SuffixProposer
from prolepsis.engine.drafting.remote.messages import (
    FROM_ENGINE,
    PROTOCOL,
    DraftCall,
    Drafts,
    Extend,
    Forget,
    FromEngine,
    Open,
    ProposeLimits,
)
from prolepsis.engine.drafting.remote.proposer import scope_of
from prolepsis.remote.propose.server import ProposeServer, ServedModel, ServingLimits, _Engine
from tests.engine.drafting.sequences import VOCAB, FakeSequence
from tests.remote.propose.servers import KEY, VOCABULARY, RawEngine, address, proposer_at, rude, serving
from tests.virtual_time import virtual_time

PARAMS = SamplingParams(temperature=0.0, max_tokens=50)
WAIT_S = 10.0


class Echo(Proposer):
    """Drafts what the sequence ends with; keeps what it is asked for."""

    name = "echo"

    def __init__(self, *, free: bool = True) -> None:
        self.free = free
        self.seen: list[list[tuple[int, ...]]] = []
        self.salts: set[str] = set()

    def propose(self, sequences: Sequence[SequenceView], limits: Sequence[int]) -> list[Draft | None]:
        self.seen.append([tuple(sequence.tokens) for sequence in sequences])
        self.salts |= {sequence.cache_salt for sequence in sequences}
        return [
            chain(tuple(sequence.tokens[-limit:]), self.name) for sequence, limit in zip(sequences, limits, strict=True)
        ]


def tokens_of(drafts: Sequence[Draft | None]) -> list[tuple[int, ...] | None]:
    return [draft.tokens if draft is not None else None for draft in drafts]


def server_of(proposer: Proposer, limits: ServingLimits | None = None) -> ProposeServer:
    return ProposeServer(ServedModel(proposer, VOCABULARY, VOCAB), KEY, limits)


@pytest.mark.parametrize("free", [True, False])
def test_drafts_follow_what_was_committed(free: bool) -> None:
    with serving(server_of(Echo(free=free))) as port:
        proposer = proposer_at(port, wait_s=WAIT_S)
        sequence = FakeSequence([1, 2, 3], 3, params=PARAMS)
        with closing(proposer):
            assert tokens_of(proposer.propose([sequence], [3])) == [(1, 2, 3)]
            sequence.tokens += [7, 8]
            assert tokens_of(proposer.propose([sequence], [2])) == [(1, 2)]


def test_the_salt_itself_never_travels() -> None:
    echo = Echo()
    with serving(server_of(echo)) as port:
        proposer = proposer_at(port, wait_s=WAIT_S)
        sequences = [FakeSequence([1], key=key, cache_salt=key, params=PARAMS) for key in ("acme", "other")]
        proposer.propose(sequences, [3, 3])
        proposer.close()
    assert echo.salts == {scope_of(KEY, "acme").hex(), scope_of(KEY, "other").hex()}


def test_text_of_one_tenant_is_not_drafted_for_another() -> None:
    text = [5, 6, 7, 8, 9, 10, 11, 12]
    with serving(server_of(SuffixProposer())) as port:
        first, second = proposer_at(port, wait_s=WAIT_S), proposer_at(port, wait_s=WAIT_S)
        teacher = FakeSequence([1, *text], 1, key="a", cache_salt="acme", params=PARAMS)
        first.propose([teacher], [4])
        first.forget(teacher)
        pupil = FakeSequence([2, *text[:4]], 5, key="b", cache_salt="acme", params=PARAMS)
        stranger = FakeSequence([2, *text[:4]], 5, key="c", cache_salt="other", params=PARAMS)
        _barrier(first)
        [learned, kept_out] = second.propose([pupil, stranger], [4, 4])
        assert learned is not None
        assert learned.tokens == tuple(text[4:])
        assert kept_out is None
        first.close()
        second.close()


def _barrier(proposer: Proposer) -> None:
    """Wait until the server has taken in all that was sent before."""
    proposer.propose([FakeSequence([3], key="barrier", params=PARAMS)], [1])


def test_rounds_that_wait_together_are_one_call_and_only_the_last_is_drafted() -> None:
    echo = Echo()
    server = server_of(echo)
    frames: list[FromEngine] = [
        Open(1, b"s" * 16, 1, 0.0, 1.0, 0, 0),
        Extend(1, (1,)),
        DraftCall(1, ((1, 4),)),
        Extend(1, (2,)),
        DraftCall(2, ((1, 4),)),
    ]
    with serving(server) as port, closing(RawEngine(port)) as engine:
        assert engine.say(*frames) == Drafts(2, engine.last.drafts)
        assert engine.last.drafts[0].prefix == 2
    assert echo.seen == [[(1, 2)]]


def test_a_round_is_answered_when_nothing_can_be_drafted() -> None:
    with serving(server_of(Echo())) as port, closing(RawEngine(port)) as engine:
        opened = Open(1, b"s" * 16, 1, 0.0, 1.0, 0, 0)
        assert engine.say(opened, Extend(1, (VOCAB,)), DraftCall(1, ((1, 4), (9, 4)))) == Drafts(1, ())
        assert engine.say(DraftCall(2, ((1, 4),)), Forget(1)) == Drafts(2, ())


BAD_MESSAGES: dict[str, list[FromEngine]] = {
    "unknown": [Extend(1, (1,))],
    "number": [Open(2, b"s" * 16, 1, 0.0, 1.0, 0, 0), Open(1, b"s" * 16, 1, 0.0, 1.0, 0, 0)],
    "sequences": [Open(number, b"s" * 16, 1, 0.0, 1.0, 0, 0) for number in (1, 2, 3)],
    "tokens": [Open(1, b"s" * 16, 1, 0.0, 1.0, 0, 0), Extend(1, (1,) * 41)],
    "temperature": [Open(1, b"s" * 16, 1, float("nan"), 1.0, 0, 0)],
    "prompt": [Open(1, b"s" * 16, -1, 0.0, 1.0, 0, 0)],
    "scope": [Open(1, b"s", 1, 0.0, 1.0, 0, 0)],
    "token": [Open(1, b"s" * 16, 1, 0.0, 1.0, 0, 0), Extend(1, (-1,))],
}


@pytest.mark.parametrize("name", BAD_MESSAGES)
def test_an_engine_that_breaks_the_rules_is_cut_off(name: str) -> None:
    terms = ProposeLimits(most_sequences=2, most_tokens=40)
    with serving(server_of(Echo(), ServingLimits(terms=terms))) as port, closing(RawEngine(port)) as engine:
        assert engine.say(*BAD_MESSAGES[name]) is None


def test_strangers_are_refused() -> None:
    with serving(server_of(Echo())) as port:
        proposer = proposer_at(port, key=SharedKey(b"x" * 32))
        assert proposer.propose([FakeSequence([1], params=PARAMS)], [3]) == [None]
        proposer.close()
        hello = next(connecting(KEY, PROTOCOL))
        for frames, reason in (
            (FROM_ENGINE.encode(Extend(1, (1,))), "Extend"),
            (next(connecting(KEY, "propose 9")), "speaks 'propose 9'; allowed: 'propose 2'"),
            (hello + hello, "Hello in a handshake; allowed here: Proof"),
            (refusal("no"), "refused: no"),
        ):
            with socket.create_connection(("127.0.0.1", port)) as connection:
                connection.sendall(frames)
                assert reason.encode() in _received(connection)[-1]


def _received(connection: socket.socket) -> list[bytes]:
    """Return all that arrives until the other side ends."""
    reader, found = FrameReader(MOST_BYTES), list[bytes]()
    while data := connection.recv(1 << 16):
        found += reader.feed(data)
    return found


def test_a_full_server_and_another_vocabulary_are_refused() -> None:
    model = ServedModel(Echo(), b"other" + b"v" * 27, VOCAB)
    with serving(ProposeServer(model, KEY)) as port, pytest.raises(PermissionError, match="other tokens or ids"):
        address(port).connect()
    full = server_of(Echo(), ServingLimits(most_engines=1))
    with (
        serving(full) as port,
        closing(address(port).connect()),
        pytest.raises(PermissionError, match="1 engines are connected already"),
    ):
        address(port).connect()


def test_silent_strangers_take_no_places_of_engines() -> None:
    server = server_of(Echo(), ServingLimits(most_engines=1, most_strangers=2))
    refused = refusal("too many connections in the handshake")[HEADER_BYTES:]
    with serving(server) as port, ExitStack() as silent:
        first, second, third = [
            silent.enter_context(socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)) for _ in range(3)
        ]
        assert _received(first) == [refused], "the oldest goes for a new one"
        with closing(address(port).connect()):  # in place of the second
            assert _received(second)[-1] == refused
            assert server.engines
        third.setblocking(False)
        with pytest.raises(BlockingIOError):
            third.recv(1)


class Held(Echo):
    """Works until `release`."""

    def __init__(self) -> None:
        super().__init__(free=False)
        self.begun, self.release = threading.Event(), threading.Event()

    def propose(self, sequences: Sequence[SequenceView], limits: Sequence[int]) -> list[Draft | None]:
        self.begun.set()
        assert self.release.wait(WAIT_S)
        return super().propose(sequences, limits)


def _frames(*messages: FromEngine) -> bytes:
    return b"".join(map(FROM_ENGINE.encode, messages))


@contextmanager
def busy() -> Iterator[socket.socket]:
    """Yield the connection of an engine whose server's proposer works."""
    proposer = Held()
    with serving(server_of(proposer)) as port, socket.create_connection(("127.0.0.1", port)) as connection:
        shake_hands_now(connection, connecting(KEY, PROTOCOL, VOCABULARY))
        opened = Open(1, b"s" * 16, 1, 0.0, 1.0, 0, 0)
        connection.sendall(_frames(opened, Extend(1, (1,)), DraftCall(1, ((1, 4),))))
        assert proposer.begun.wait(WAIT_S)
        try:
            yield connection
        finally:
            proposer.release.set()


def test_what_waits_for_the_proposer_has_a_bound_in_bytes() -> None:
    def sequence(number: int) -> bytes:
        opened = Open(number, b"s" * 16, 1, 0.0, 1.0, 0, 0)
        return _frames(opened, Extend(number, (70_000,) * 1_000_000), Forget(number))

    with busy() as connection:
        connection.settimeout(2.0)
        with pytest.raises(TimeoutError):
            connection.sendall(b"".join(map(sequence, range(2, 12))))


def test_too_many_tokens_are_refused_as_they_arrive() -> None:
    with busy() as connection:
        tokens = FROM_ENGINE.encode(Extend(1, (1,) * (1 << 20)))
        connection.settimeout(WAIT_S / 2)
        connection.sendall(tokens + tokens)
        assert connection.recv(1) == b""


class StuckTransport(asyncio.Transport):
    """Its other side reads nothing, so that it does not close."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__({"socket": connection})
        self.is_aborted = False

    def write(self, data: bytes | bytearray | memoryview) -> None: ...

    def close(self) -> None: ...

    def abort(self) -> None:
        self.is_aborted = True


@virtual_time
async def test_an_engine_that_is_gone_or_given_up_holds_no_connection() -> None:
    with socket.socket() as connection:
        transport = StuckTransport(connection)
        engine = _Engine(server_of(Echo()))
        engine.connection_made(transport)
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
        engine.leave("no reason")
        assert not transport.is_aborted
        await asyncio.sleep(10.0)
        assert transport.is_aborted
        engine.connection_lost(None)


def test_a_server_with_another_key_gets_no_tokens() -> None:
    got: list[FromEngine] = []

    def keep(message: FromEngine) -> list[bytes]:
        got.append(message)
        return []

    with rude(keep) as port:
        proposer = proposer_at(port, key=SharedKey(b"x" * 32))
        assert proposer.propose([FakeSequence([1], params=PARAMS)], [3]) == [None]
        proposer.close()
    assert got == []


def test_a_proposer_that_raises_costs_its_drafts() -> None:
    class Broken(Echo):
        def propose(self, sequences: Sequence[SequenceView], limits: Sequence[int]) -> list[Draft | None]:
            raise RuntimeError("broken")

    with serving(server_of(Broken())) as port, closing(RawEngine(port)) as engine:
        engine.say(Open(1, b"s" * 16, 1, 0.0, 1.0, 0, 0), Extend(1, (1,)), DraftCall(1, ((1, 4),)))
        assert engine.last == Drafts(1, ())
