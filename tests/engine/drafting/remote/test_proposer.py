"""Drafts of a propose server."""

from collections import Counter
from contextlib import suppress
from typing import cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prolepsis.core.codec import ProtocolError
from prolepsis.core.requests import SamplingParams
from prolepsis.core.rounds import RemoteRounds
from prolepsis.engine.drafting.draft import Draft, chain
from prolepsis.engine.drafting.remote.link import ConnectionLost, Link
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
from prolepsis.engine.drafting.remote.proposer import RemoteProposer, RemoteSettings, scope_of
from tests.engine.drafting.sequences import VOCAB, FakeSequence
from tests.remote.propose.servers import KEY, FakeConnection, FakeLink, sent

PARAMS = SamplingParams(temperature=0.0, max_tokens=50)


class Remote:
    """A proposer with its link, its reports added up, and a clock."""

    def __init__(self, settings: RemoteSettings | None = None, terms: ProposeLimits | None = None) -> None:
        self.now = 0.0
        self.connection = FakeConnection(terms)
        self.link = FakeLink(self.connection)
        self.outcomes: Counter[str] = Counter()
        self.seconds: list[float] = []
        self.connected: list[bool] = []
        link = cast(Link, self.link)
        self.proposer = RemoteProposer(link, KEY, VOCAB, settings, observe=self._observe, clock=lambda: self.now)

    def propose(self, sequence: FakeSequence, limit: int = 4) -> Draft | None:
        return self.proposer.propose([sequence], [limit])[0]

    def answer(self, prefix: int, *tokens: int, number: int = 1) -> None:
        self.connection.answers.append(Drafts(self.connection.round, (sent(number, prefix, *tokens),)))

    def _observe(self, rounds: RemoteRounds) -> None:
        self.outcomes.update(rounds.outcomes)
        self.seconds += rounds.seconds
        self.connected.append(rounds.is_connected)


@pytest.fixture
def sequence() -> FakeSequence:
    return FakeSequence([1, 2, 3], num_prompt_tokens=3, params=PARAMS, cache_salt="tenant", noise_key=2**64 - 1)


def test_a_sequence_is_opened_extended_and_forgotten(sequence: FakeSequence) -> None:
    remote = Remote()
    assert remote.propose(sequence) is None
    opened = Open(1, scope_of(KEY, "tenant"), 3, 0.0, 1.0, 0, 2**64 - 1)
    assert remote.connection.take() == [opened, Extend(1, (1, 2, 3)), DraftCall(1, ((1, 20),))]
    sequence.tokens.append(4)
    remote.propose(sequence)
    assert remote.connection.take() == [Extend(1, (4,)), DraftCall(2, ((1, 20),))]
    sequence.tokens.append(5)
    remote.proposer.forget(sequence)
    assert remote.connection.take() == [Extend(1, (5,)), Forget(1)]
    remote.proposer.forget(sequence)
    remote.proposer.forget(FakeSequence([1], key="never drafted for"))
    assert remote.connection.take() == []


def test_a_draft_is_used_behind_the_tokens_committed_since(sequence: FakeSequence) -> None:
    remote = Remote()
    remote.propose(sequence)
    remote.answer(3, 4, 5, 6, 7, 8, 9)
    sequence.tokens.append(4)
    remote.now = 0.25
    assert remote.propose(sequence) == chain((5, 6, 7, 8), "remote")
    sequence.tokens += [5, 6]
    assert remote.propose(sequence) == chain((7, 8, 9), "remote")
    assert (remote.outcomes, remote.seconds) == ({"used": 1}, [0.25])


@pytest.mark.parametrize(
    ("committed", "outcome"), [([4, 9], "stale"), ([4, 5, 6], "late"), ([4, 5, 6, 7], "stale"), ([4, 5], "used")]
)
def test_outcomes_of_drafts_are_counted(sequence: FakeSequence, committed: list[int], outcome: str) -> None:
    remote = Remote()
    remote.propose(sequence)
    sequence.tokens += committed
    remote.answer(3, 4, 5, 6)
    drafted = remote.propose(sequence)
    assert (drafted is not None) == (outcome == "used")
    assert remote.outcomes == {outcome: 1}


def test_rounds_without_an_answer_of_their_own_and_empty_answers(sequence: FakeSequence) -> None:
    remote = Remote()
    for token in (4, 5, 6):
        remote.propose(sequence)
        sequence.tokens.append(token)
    remote.connection.answers.append(Drafts(3, ()))
    remote.propose(sequence)
    assert remote.outcomes == {"late": 2, "empty": 1}


def test_answers_after_the_end_of_their_sequence_are_late(sequence: FakeSequence) -> None:
    remote = Remote()
    remote.propose(sequence)
    remote.answer(3, 4)
    remote.proposer.forget(sequence)
    other = FakeSequence([1], key="other", params=PARAMS)
    remote.propose(other)
    assert remote.outcomes == {"late": 1}


def test_a_newer_draft_overtakes_one_that_still_fits(sequence: FakeSequence) -> None:
    remote = Remote()
    remote.propose(sequence)
    remote.answer(3, 4, 5, 6)
    remote.propose(sequence)
    sequence.tokens.append(4)
    remote.propose(sequence)
    remote.answer(4, 5, 7)
    assert remote.propose(sequence) == chain((5, 7), "remote")
    assert remote.outcomes == {"used": 2}


def test_it_is_asked_again_when_too_little_is_ahead(sequence: FakeSequence) -> None:
    remote = Remote(RemoteSettings(ahead=3))
    remote.propose(sequence)
    remote.answer(3, 4, 5, 6, 7, 8)
    remote.connection.take()
    for _ in range(2):
        sequence.tokens.append(len(sequence.tokens) + 1)
        remote.propose(sequence)
        assert remote.connection.take() == []
    sequence.tokens.append(6)
    remote.propose(sequence)
    assert remote.connection.take() == [Extend(1, (4, 5, 6)), DraftCall(2, ((1, 7),))]


def test_the_same_tokens_are_asked_for_once(sequence: FakeSequence) -> None:
    remote = Remote()
    remote.propose(sequence)
    remote.connection.take()
    remote.propose(sequence)
    assert remote.connection.take() == []


def test_a_sequence_without_drafts_asks_ever_more_rarely(sequence: FakeSequence) -> None:
    remote = Remote()
    asked: list[int] = []
    for i in range(32):
        remote.propose(sequence)
        if any(isinstance(message, DraftCall) for message in remote.connection.take()):
            asked.append(i)
            remote.connection.answers.append(Drafts(len(asked), ()))
        sequence.tokens.append(4)
    assert asked == [0, 1, 2, 3, 4, 6, 10, 18, 26]


def test_a_draft_of_use_makes_it_ask_often_again(sequence: FakeSequence) -> None:
    remote = Remote()
    for _ in range(9):
        remote.propose(sequence)
        sequence.tokens.append(4)
    remote.answer(9, 4, 4, 4, 5)  # it has asked with 9 tokens, and has 12 by now
    assert remote.propose(sequence) == chain((5,), "remote")
    sequence.tokens += [5, 6]
    remote.connection.take()
    remote.propose(sequence)
    assert any(isinstance(message, DraftCall) for message in remote.connection.take())


def test_after_a_loss_sequences_are_opened_with_all_their_tokens(sequence: FakeSequence) -> None:
    remote = Remote()
    remote.propose(sequence)
    remote.connection.answers.append(ConnectionLost("gone"))
    sequence.tokens.append(4)
    assert remote.propose(sequence) is None
    assert (remote.link.losses, remote.outcomes) == (["gone"], {"failed": 1})
    assert remote.propose(sequence) is None
    remote.link.made = remote.connection = FakeConnection()
    remote.propose(sequence)
    opened, extended, _ = remote.connection.take()
    assert isinstance(opened, Open)
    assert extended == Extend(2, (1, 2, 3, 4))
    assert remote.connected == [True, False, True][: len(remote.connected)]


def test_a_silent_server_is_given_up(sequence: FakeSequence) -> None:
    remote = Remote()
    remote.propose(sequence)
    remote.now = 6.0
    sequence.tokens.append(4)
    remote.propose(sequence)
    assert remote.link.losses == ["no answer for 5 s"]


BAD_ANSWERS = {
    "round": Drafts(9, ()),
    "sequence": Drafts(1, (sent(7, 3, 4),)),
    "twice": Drafts(1, (sent(1, 3, 4), sent(1, 3, 5))),
    "prefix": Drafts(1, (sent(1, 4, 4),)),
    "token": Drafts(1, (sent(1, 3, VOCAB),)),
    "parent": Drafts(1, (sent(1, 3, draft=Draft((1, 2), (1, -1), "remote")),)),
    "twins": Drafts(1, (sent(1, 3, draft=Draft((1, 1), (-1, -1), "remote")),)),
    "survival": Drafts(1, (sent(1, 3, draft=chain((1, 2), "remote", (0.5, 0.75))),)),
    "no number": Drafts(1, (sent(1, 3, draft=chain((1,), "remote", (float("nan"),))),)),
}


@pytest.mark.parametrize("name", BAD_ANSWERS)
def test_a_wrong_answer_ends_the_connection(name: str, sequence: FakeSequence) -> None:
    remote = Remote()
    remote.propose(sequence)
    remote.connection.answers.append(BAD_ANSWERS[name])
    assert remote.propose(sequence) is None
    assert len(remote.link.losses) == 1
    assert remote.outcomes == {"failed": 1}


def test_the_servers_room_is_never_exceeded() -> None:
    remote = Remote(terms=ProposeLimits(most_sequences=2, most_tokens=130))
    sequences = [FakeSequence([1] * 10, 10, key=key, params=PARAMS) for key in "abc"]
    remote.proposer.propose(sequences, [4, 4, 4])
    assert [message.number for message in remote.connection.take() if isinstance(message, Open)] == [1, 2]
    remote.proposer.forget(sequences[0])
    remote.proposer.propose([FakeSequence([1] * 71, 71, key="long", params=PARAMS)], [4])
    assert not any(isinstance(message, Open) for message in remote.connection.take())
    remote.proposer.propose([sequences[2]], [4])
    assert any(isinstance(message, Open) for message in remote.connection.take())


def test_it_waits_only_for_missing_drafts_and_not_after_useless_waits(sequence: FakeSequence) -> None:
    remote = Remote(RemoteSettings(wait_s=0.01))
    waits: list[float] = []

    def late(wait_s: float) -> None:
        waits.append(wait_s)
        remote.now += wait_s

    remote.connection.on_wait = late
    for token in (4, 5, 6, 7, 8):
        assert remote.propose(sequence) is None
        sequence.tokens.append(token)
    assert waits == [0.01, 0.01]

    def in_time(wait_s: float) -> None:
        waits.append(wait_s)
        sent = sum(len(message.tokens) for message in remote.connection.sent if isinstance(message, Extend))
        remote.answer(sent, *sequence.tokens[sent:], 1, 2)

    remote.connection.on_wait = in_time
    for _ in range(8):
        sequence.tokens.append(9)
        if (draft := remote.propose(sequence)) is not None:
            break
    assert draft == chain((1, 2), "remote")
    sequence.tokens += [1]
    number = len(waits)
    assert remote.propose(sequence) == chain((2,), "remote")
    assert len(waits) == number


def test_without_waiting_it_is_free() -> None:
    assert Remote().proposer.free
    assert not Remote(RemoteSettings(wait_s=0.001)).proposer.free


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
