"""Whatever a propose server answers, and whenever: the output is that of plain decoding."""

from collections.abc import Iterator, Sequence
from itertools import chain as joined
from itertools import repeat
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prolepsis.core.messages import ApplyPlan
from prolepsis.core.plan import SpecPlan
from prolepsis.engine.drafting.draft import Draft, chain
from prolepsis.engine.drafting.proposer import SequenceView
from prolepsis.engine.drafting.proposers.prompt_lookup import PromptLookupProposer
from prolepsis.engine.drafting.remote.link import ConnectionLost, Link
from prolepsis.engine.drafting.remote.messages import (
    FROM_ENGINE,
    FROM_SERVER,
    DraftCall,
    Drafts,
    Extend,
    FromEngine,
    SentDraft,
)
from prolepsis.engine.drafting.remote.proposer import RemoteProposer, RemoteSettings
from prolepsis.remote.propose.server import ProposeServer, ServedModel
from tests.exact.serving import serve, setup_of
from tests.exact.test_engine_equality import PARAMS, PROMPT, ask, plain_texts
from tests.fakes import VOCAB, build, drain, outputs, submit, terminals
from tests.remote.propose.queues import RedisServer, engine_at, needs_client, needs_redis, redis_server, taking
from tests.remote.propose.servers import KEY, VOCABULARY, FakeConnection, FakeLink, proposer_at, rude, serving

KINDS = ("right", "old", "tree", "wrong", "random", "late", "lost", "garbage")


class Hostile(FakeConnection):
    """Answers each round with the next of `kinds`; it knows what is to come."""

    def __init__(self, truth: Sequence[int], kinds: Iterator[str]) -> None:
        super().__init__()
        self._truth = truth
        self._kinds = kinds

    def receive(self, wait_s: float = 0.0) -> list[Drafts]:
        rounds = [message for message in self.sent if isinstance(message, DraftCall)]
        kind = next(self._kinds) if rounds else "late"
        if kind == "late":
            return []
        if kind == "lost":
            raise ConnectionLost("gone")
        if kind == "garbage":
            FROM_SERVER.decode(b"\xff" * 99)
        extended = [message for message in self.take() if isinstance(message, Extend)]
        self._prefix = getattr(self, "_prefix", 0) + sum(len(message.tokens) for message in extended)
        prefix = self._prefix - 2 * (kind == "old")
        draft = _draft(kind, self._truth[prefix : prefix + 9])
        return [Drafts(rounds[-1].round, (SentDraft(rounds[-1].wishes[0][0], prefix, draft),) if draft else ())]


class HostileLink(FakeLink):
    """Makes another connection at once."""

    def __init__(self, truth: Sequence[int], kinds: Iterator[str]) -> None:
        super().__init__(Hostile(truth, kinds))
        self._of = truth, kinds

    def lose(self, reason: object) -> None:
        super().lose(reason)
        self.made = Hostile(*self._of)


def _draft(kind: str, right: Sequence[int]) -> Draft | None:
    wrong = [(token + 1) % VOCAB for token in right]
    if len(right) < 4:
        return chain(tuple(right), "remote") if right else None
    if kind == "wrong":
        return chain((*right[:2], *wrong[2:]), "remote")
    if kind == "random":
        return chain(tuple(wrong), "remote", tuple([0.9] * len(wrong)))
    if kind == "tree":
        return Draft((right[0], right[1], wrong[0], wrong[1], right[2]), (-1, 0, -1, 0, 1), "remote")
    return chain(tuple(right), "remote")


@given(st.sampled_from(sorted(PARAMS)), st.lists(st.sampled_from(KINDS), max_size=30), st.sampled_from([None, 1, 5]))
def test_a_hostile_server_changes_no_token(name: str, kinds: list[str], depth: int | None) -> None:
    truth = [*PROMPT, *plain_texts()[name]]
    link = HostileLink(truth, joined(kinds, repeat("right")))
    remote = RemoteProposer(cast(Link, link), KEY, VOCAB, RemoteSettings(ahead=4))
    texts = serve(
        setup_of(proposers=[remote, PromptLookupProposer(min_match=1)]), SpecPlan(fixed_depth=depth), ask(name)
    )
    assert texts["r", 0] == plain_texts()[name]


@pytest.mark.parametrize("wait_s", [0.0, 5.0])
def test_a_real_server_changes_no_token(wait_s: float) -> None:
    model = ServedModel(PromptLookupProposer(min_match=1), VOCABULARY, VOCAB)
    with serving(ProposeServer(model, KEY)) as port:
        engine = build(setup_of(proposers=[proposer_at(port, wait_s=wait_s, vocab_size=VOCAB)]))
        engine.send(ApplyPlan(SpecPlan(fixed_depth=4)))
        submit(engine, *(ask(name, name) for name in PARAMS))
        events = drain(engine)
        engine.close()
    assert {name: outputs(events)[name, 0] for name in PARAMS} == plain_texts()
    if wait_s:
        assert sum(end.stats.num_accepted for end in terminals(events).values()) > 0


class Fatal(PromptLookupProposer):
    """Has Redis killed while it drafts."""

    def __init__(self, redis: RedisServer) -> None:
        super().__init__(min_match=1)
        self.num_calls = 0
        self._redis = redis

    def propose(self, sequences: Sequence[SequenceView], limits: Sequence[int]) -> list[Draft | None]:
        self.num_calls += 1
        if self.num_calls == 4:
            self._redis.kill()
        return super().propose(sequences, limits)


@needs_client
@needs_redis
def test_a_queue_changes_no_token_also_as_redis_is_lost() -> None:
    with redis_server() as redis, taking(fatal := Fatal(redis), redis.queue):
        engine = build(setup_of(proposers=[engine_at(redis.queue)]))
        engine.send(ApplyPlan(SpecPlan(fixed_depth=4)))
        submit(engine, *(ask(name, name) for name in PARAMS))
        events = drain(engine)
        engine.close()
    assert {name: outputs(events)[name, 0] for name in PARAMS} == plain_texts()
    assert fatal.num_calls == 4
    assert sum(end.stats.num_accepted for end in terminals(events).values()) > 0


def test_a_server_of_garbage_changes_no_token() -> None:
    def answer(message: FromEngine) -> list[bytes]:
        return [b"\0\0\0\x07garbage" if isinstance(message, DraftCall) else FROM_ENGINE.encode(message)]

    with rude(answer) as port:
        engine = build(setup_of(proposers=[proposer_at(port, wait_s=5.0, vocab_size=VOCAB)]))
        submit(engine, *(ask(name, name) for name in PARAMS))
        events = drain(engine)
        engine.close()
    assert {name: outputs(events)[name, 0] for name in PARAMS} == plain_texts()
