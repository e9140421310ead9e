"""Propose servers at a queue of Redis: rounds, several servers, what is lost, late or not of an engine with the key."""

from contextlib import closing

import pytest

from prolepsis.core.codec import HEADER_BYTES
from prolepsis.core.handshake import SharedKey
from prolepsis.core.requests import SamplingParams
from prolepsis.engine.drafting.proposers.suffix import SuffixProposer
from prolepsis.engine.drafting.remote import messages
from prolepsis.engine.drafting.remote.messages import DraftCall, Extend, FromEngine, Open, ProposeLimits
from prolepsis.engine.drafting.remote.proposer import RemoteProposer
from prolepsis.engine.drafting.remote.queue import Queue
from prolepsis.remote.propose.server import ProposeServer, ServedModel, ServingLimits
from tests.engine.drafting.sequences import VOCAB, FakeSequence
from tests.remote.propose.queues import engine_at, needs_client, needs_redis, redis_server, taking
from tests.remote.propose.servers import KEY, VOCABULARY
from tests.remote.propose.test_server import WAIT_S, Echo, Held, tokens_of
from tests.waiting import wait_for

pytestmark = needs_client

PARAMS = SamplingParams(temperature=0.0, max_tokens=500)
QUEUE = Queue("redis://none", "drafts", KEY)
OURS, THEIRS = b"o" * 16, b"t" * 16


def drafted(proposer: RemoteProposer, sequence: FakeSequence, *new: int) -> tuple[int, ...] | None:
    sequence.tokens += new
    return tokens_of(proposer.propose([sequence], [2]))[0]


@needs_redis
@pytest.mark.parametrize("free", [True, False])
def test_drafts_follow_what_was_committed_and_redis_may_come_back_empty(free: bool) -> None:
    sequence = FakeSequence([1, 2, 3], 3, params=PARAMS)
    with redis_server() as redis, taking(Echo(free=free), redis.queue), closing(engine_at(redis.queue)) as engine:
        assert drafted(engine, sequence) == (1, 2)
        assert drafted(engine, sequence, 1, 2, 7, 8) == (1, 2)
        redis.kill()
        assert drafted(engine, sequence, *[9] * 9) is None
        redis.start()
        wait_for(lambda: drafted(engine, sequence))


@needs_redis
def test_another_server_takes_the_next_round_and_a_late_draft_costs_nothing() -> None:
    held, sequence = Held(), FakeSequence([1, 2, 3], 3, params=PARAMS)
    with redis_server() as redis, taking(held, redis.queue), closing(engine_at(redis.queue, wait_s=0.0)) as engine:
        connection = engine._link.connection()
        assert drafted(engine, sequence) is None
        assert held.begun.wait(WAIT_S)
        with taking(Echo(), redis.queue):
            wait_for(lambda: drafted(engine, sequence, *[4] * (len(sequence.tokens) == 3)))
        held.release.set()  # its late draft comes before that for the next round, which only it can take now
        sequence.tokens += [9] * 9
        wait_for(lambda: drafted(engine, sequence))
        assert engine._link.connection() is connection


class Turns:
    """A server, and the pipeline of Redis between its turns: it gives what a test puts in, and keeps the answers."""

    def __init__(self, most_sequences: int = 9) -> None:
        from prolepsis.remote.propose.queue import QueueServer

        limits = ServingLimits(terms=ProposeLimits(most_sequences=most_sequences))
        self._server = QueueServer(ProposeServer(ServedModel(SuffixProposer(), VOCABULARY, VOCAB), KEY, limits), QUEUE)
        self.entries: list[tuple[bytes, dict[bytes, bytes]]] = []
        self._answers: dict[bytes, tuple[int, list[tuple[int, ...]]]] = {}
        self._now_s = 0

    def put(self, engine: bytes, *said: FromEngine, at_s: int = 0, queue: Queue = QUEUE) -> None:
        frames = queue.seal(engine).encrypt(b"".join(map(messages.FROM_ENGINE.encode, said)))
        self.entries.append((b"%d-0" % (1000 * at_s), {b"engine": engine, b"frames": frames}))

    async def turn(self, now_s: int) -> dict[bytes, tuple[int, list[tuple[int, ...]]]]:
        """Return what the next turn leaves for each engine: the round, and the tokens of its drafts."""
        self._now_s, self._answers = now_s, {}
        await self._server._turn(self)
        return self._answers

    def rpush(self, place: str, frame: bytes) -> "Turns":
        engine = bytes.fromhex(place.removeprefix("drafts:"))
        answer = messages.FROM_SERVER.decode(QUEUE.seal(b"drafts" + engine).decrypt(frame)[HEADER_BYTES:])
        self._answers[engine] = answer.round, [sent.draft.tokens for sent in answer.drafts]
        return self

    def set(self, *given: object, **named: object) -> "Turns":
        return self

    xreadgroup = xdel = pexpire = time = set

    async def execute(self) -> list[object]:
        entries, self.entries = self.entries, []
        return [None, [[b"drafts", entries]] if entries else [], (self._now_s, 0)]


def call(round_: int, *tokens: int, number: int = 1, scope: bytes = OURS, temperature: float = 0.0) -> list[FromEngine]:
    opened = Open(number, scope, 1, temperature, 1.0, 0, 0)
    return [opened, Extend(number, tokens), DraftCall(round_, ((number, 1),))]


async def test_the_last_round_of_each_engine_is_answered_and_none_that_is_late() -> None:
    turns = Turns()
    turns.put(b"late", *call(1, 7, 5, 6, 7, 5, 6), at_s=95)
    turns.put(b"a", *call(1, 7, 5, 6, 7, 5), at_s=96)
    turns.put(b"a", *call(2, 7, 5, 6, 7, 5, 6), at_s=96)
    turns.put(b"b", *call(1, 7, 5, 6, 7, 5), at_s=100)
    assert await turns.turn(100) == {b"a": (2, [(7,)]), b"b": (1, [(6,)])}


async def test_what_is_not_of_an_engine_with_the_key_is_refused_alone() -> None:
    turns = Turns()
    turns.entries += [(b"0-0", {}), (b"0-0", {b"engine": b"a", b"frames": b"junk"})]
    turns.put(b"a", *call(1, 5), queue=Queue("", "drafts", SharedKey(b"x" * 32)))
    turns.put(b"a", *call(1, 5), queue=Queue("", "others", KEY))
    turns.put(b"a", Extend(1, (5,)))
    turns.put(b"a", DraftCall(1, ((1, 1),)))
    turns.put(b"a", *call(1, 5, temperature=float("nan")))
    turns.put(b"b", *call(1, 7, 5, 6, VOCAB, 7, 5))
    turns.put(b"c", *call(1, 7, 5, 6, 8, 7, 5))
    assert await turns.turn(1) == {b"b": (1, []), b"c": (1, [(6,)])}


async def test_a_sequence_has_ended_when_no_round_names_it_and_its_tenant_learns() -> None:
    turns, text = Turns(), (5, 6, 7, 8)
    turns.put(b"a", *call(1, 1, *text, 9), at_s=101)
    await turns.turn(101)
    for now_s, learned in ((120, []), (132, []), (132, [(9,)])):  # it has ended with the first turn at 132 s
        turns.put(b"b", *call(1, 2, *text), at_s=now_s)
        turns.put(b"c", *call(1, 2, *text, scope=THEIRS), at_s=now_s)
        assert await turns.turn(now_s) == {b"b": (1, learned), b"c": (1, [])}


async def test_of_more_sequences_than_there_is_room_for_the_oldest_end() -> None:
    turns, text = Turns(most_sequences=1), (5, 6, 7, 8)
    for number, learned in ((1, []), (2, []), (3, [(9,)])):
        turns.put(
            b"a", *call(number, number, *text, number=number), *([Extend(1, (1, *text, 9))] if number == 1 else [])
        )
        assert await turns.turn(1) == {b"a": (number, learned)}
