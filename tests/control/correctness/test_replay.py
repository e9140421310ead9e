"""Requests decoded again: the same tokens where speculation kept its promise, named differences where it did not."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from prolepsis.control.correctness.replay import LAST, replay
from prolepsis.core.errors import InvalidParameter
from prolepsis.core.events import Difference, Event, Tokens
from prolepsis.core.messages import ApplyPlan
from prolepsis.core.plan import SpecPlan
from prolepsis.core.recording import NUM_BEYOND, Recording, recording
from prolepsis.core.requests import GenerateRequest, SamplingParams
from prolepsis.engine.rows import Row, SampledTokens
from prolepsis.engine.runner import Computed
from prolepsis.engine.sampling.sampler import Sampler
from prolepsis.engine.thread import ThreadEngineClient
from prolepsis.engine.verification import Verification
from tests.exact.serving import setup_of
from tests.fake_proposer import Scripted
from tests.fakes import EOS, VOCAB, build, draft_chain, drain, request, run, submit, terminals

PARAMS = {
    "greedy": SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True),
    "sampled": SamplingParams(temperature=1.0, seed=3, max_tokens=40, ignore_eos=True),
    "penalised": SamplingParams(temperature=0.8, top_p=0.9, seed=5, frequency_penalty=0.5, max_tokens=40),
    "stopped": SamplingParams(temperature=1.0, seed=9, max_tokens=60, stop=("ab", "f"), ignore_eos=True),
}
Corrupt = Callable[[Row, SampledTokens], SampledTokens]


class Flawed(Verification):
    """Emits what `corrupt` makes of the results of rows with a draft."""

    def __init__(self, corrupt: Corrupt) -> None:
        super().__init__(Sampler(VOCAB, (EOS,)), max_model_len=256)
        self._corrupt = corrupt

    def verify(self, rows: Sequence[Row], computed: Computed) -> list[SampledTokens | None]:
        found = super().verify(rows, computed)
        return [
            self._corrupt(row, result) if result is not None and row.draft is not None else result
            for row, result in zip(rows, found, strict=True)
        ]


def unverified(row: Row, _: SampledTokens) -> SampledTokens:
    """Take the first drafted token for right."""
    assert row.draft is not None
    return SampledTokens((row.draft.tokens[0],))


@asynccontextmanager
async def engine(corrupt: Corrupt | None = None, wrong_from: int = 2) -> AsyncIterator[ThreadEngineClient]:
    setup = setup_of(proposers=[Scripted(lambda sequence, limit: draft_chain(sequence, limit, wrong_from=wrong_from))])
    if corrupt is not None:
        setup.verifier = Flawed(corrupt)
    client = ThreadEngineClient(build(setup))
    client.send(ApplyPlan(SpecPlan(fixed_depth=4)))
    yield client
    await client.close()


async def served(client: ThreadEngineClient, source: GenerateRequest) -> tuple[Recording, list[Event]]:
    events = [event async for event in client.generate(source)]
    assert terminals(events)[source.request_id].stats.num_drafts > 0
    return recording(source, events), events


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("params", PARAMS)
async def test_a_replay_of_speculated_tokens_matches(params: str, n: int) -> None:
    async with engine() as client:
        recorded, _ = await served(client, request("a", [1, 2, 3], PARAMS[params], n=n))
        found = await replay(client, recorded, "again")
    assert (found.outcome, found.differences, found.shown) == ("match", {}, [])
    assert found.num_tokens == sum(map(len, recorded.tokens)) == recorded.num_tokens - 3


@pytest.mark.parametrize("params", ["greedy", "sampled", "penalised"])
async def test_a_draft_that_was_emitted_unverified_is_structural(params: str) -> None:
    async with engine(unverified, wrong_from=0) as client:
        recorded, _ = await served(client, request("a", [1, 2, 3], PARAMS[params]))
        found = await replay(client, recorded, "again")
        plain = await replay(client, replace(recorded, tokens=found.tokens), "plain")
    assert found.outcome == "structural"
    [(sequence, difference)] = found.differences.items()
    assert (sequence, difference.emitted) == (0, recorded.tokens[0][difference.position])
    assert difference.margin is not None
    assert difference.tolerance is not None
    assert difference.margin > difference.tolerance
    assert (plain.outcome, found.tokens[0][difference.position]) == ("match", difference.replayed)
    assert found.num_tokens > difference.position + 1, "behind its difference it is decoded plainly"


@pytest.mark.parametrize("kept", [5, 39])
async def test_tokens_that_were_lost_or_made_up_are_structural(kept: int) -> None:
    async with engine() as client:
        recorded, _ = await served(client, request("a", [1, 2, 3], PARAMS["sampled"]))
        [tokens] = recorded.tokens
        short = await replay(client, replace(recorded, tokens=(tokens[:kept],)), "short")
        long = await replay(client, replace(recorded, tokens=((*tokens, 1),)), "long")
    assert short.differences == {0: Difference(kept, None, tokens[kept], "structural")}
    assert long.differences == {0: Difference(len(tokens), 1, None, "structural")}


async def test_a_replay_ends_a_few_tokens_behind_its_difference() -> None:
    async with engine() as client:
        recorded, _ = await served(client, request("a", [1, 2, 3], replace(PARAMS["greedy"], max_tokens=120)))
        [tokens] = recorded.tokens
        found = await replay(client, replace(recorded, tokens=(tokens[:10],)), "short")
    assert found.tokens == (tokens[: 10 + NUM_BEYOND],)


async def test_only_the_sequence_that_differs_is_named() -> None:
    async with engine() as client:
        recorded, _ = await served(client, request("a", [1, 2, 3], PARAMS["sampled"], n=2))
        first, second = recorded.tokens
        wrong = (*second[:7], (second[7] + 1) % VOCAB, *second[8:])
        found = await replay(client, replace(recorded, tokens=(first, wrong)), "again")
    assert set(found.differences) == {1}
    assert found.differences[1].position == 7


async def test_a_token_outside_of_the_vocabulary_is_a_difference() -> None:
    async with engine() as client:
        recorded, _ = await served(client, request("a", [1, 2, 3], PARAMS["greedy"]))
        found = await replay(client, replace(recorded, tokens=((10**9,),)), "again")
        assert found.differences[0].kind == "structural"
        assert (await replay(client, recorded, "once more")).outcome == "match"


async def test_steps_say_what_was_proposed_to_who_asks() -> None:
    source = request("a", [1, 2, 3], PARAMS["greedy"])
    async with engine(wrong_from=2) as client:
        _, unasked = await served(client, source)
        recorded, events = await served(client, replace(source, request_id="b", tells_drafts=True))
    assert all(event.proposed is None for event in unasked if isinstance(event, Tokens))
    emitted = num_told = 0
    for event in events:
        if isinstance(event, Tokens):
            if event.proposed is not None:
                num_told += 1
                assert (event.proposed.proposer, event.proposed.sources) == ("scripted", ())
                assert event.proposed.parents == tuple(range(-1, len(event.proposed.tokens) - 1))
                common = recorded.tokens[0][emitted : emitted + 2]
                assert event.proposed.tokens[:2] == common[: len(event.proposed.tokens)]
            emitted += len(event.token_ids)
    assert num_told > 3


def test_a_replay_reuses_nothing_and_leaves_nothing_behind() -> None:
    proposer = Scripted(lambda sequence, limit: None)
    running = build(setup_of(proposers=[proposer]))
    source = request("a", list(range(1, 11)) * 8, PARAMS["greedy"])
    recorded = recording(source, run(running, source))
    cached, told = running.scheduler._paging.pool.num_available, list(proposer.committed)
    index = dict(running.scheduler._paging.pool._index)
    events = run(running, replace(source, request_id="again", emitted=recorded.tokens, priority=LAST))
    stats = terminals(events)["again"].stats
    assert (stats.num_cached_tokens, stats.mode.mode, stats.mode.reason) == (0, "off", "replay")
    assert index
    assert running.scheduler._paging.pool._index == index
    assert running.scheduler._paging.pool.num_available == cached
    assert proposer.committed == told
    assert proposer.forgotten == ["a/0"]


def test_a_replay_gives_way() -> None:
    running = build(setup_of(max_sequences=1))
    source = request("a", [1, 2, 3], PARAMS["sampled"])
    recorded = recording(source, run(running, source))
    submit(running, replace(source, request_id="again", emitted=recorded.tokens, priority=LAST))
    running.step()
    running.send(ApplyPlan(SpecPlan()))
    submit(running, request("b", [4], PARAMS["greedy"]))
    running.step()
    assert [sequence.key for sequence in running.scheduler.running] == ["b/0"]
    ends = terminals(drain(running))
    assert list(ends) == ["b", "again"]
    assert ends["again"].stats.num_preemptions == 1


def test_a_recording_of_other_sequences_is_refused() -> None:
    running = build(setup_of())
    with pytest.raises(InvalidParameter, match="emitted is of 1 sequences; allowed: of all 2"):
        running.validate(replace(request("a", [1], n=2), emitted=((1,),)))
