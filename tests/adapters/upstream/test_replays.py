"""Shadow in front of other engines: what a replay shows is counted, within a budget, and nobody waits for it."""

import asyncio
from dataclasses import replace

import pytest

from prolepsis.adapters.upstream.client import UpstreamClient
from prolepsis.adapters.upstream.replays import MOST_TOKENS, SHARE, Replays
from prolepsis.core.errors import EngineError
from prolepsis.core.messages import ApplyPlan
from prolepsis.core.plan import SpecPlan
from prolepsis.core.requests import GenerateRequest, SpeculationChoice
from tests.adapters.upstream.fakes import DEPTH, FakeUpstream, request, two_pools
from tests.adapters.upstream.test_client import collect, stats_of
from tests.clock import Clock
from tests.waiting import until

SHADOW = SpeculationChoice("shadow")


def judged(client: UpstreamClient) -> list[tuple[str, int, int, int]]:
    return [(c.traffic_class, c.num_asked, c.num_judged, c.num_right) for c in client.proposer_counts()]


async def test_what_drafts_would_bring_is_counted_by_class(plain: FakeUpstream, speculating: FakeUpstream) -> None:
    speculating.accepted = [1, 0, 2]  # of three drafts: none right, none with one, two with two
    async with two_pools(plain, speculating) as client:
        answered = await collect(client, request("a", speculation=SHADOW, traffic_class="code", n=2))
        assert (stats_of(answered).mode.mode, stats_of(answered).mode.reason) == ("off", "plain_only")
        await until(lambda: judged(client) == [("code", 1, 3, 2)])
        assert (len(plain.asked), len(speculating.asked)) == (2, 1)


async def test_a_replay_that_fails_is_forgotten(plain: FakeUpstream, speculating: FakeUpstream) -> None:
    speculating.status = 500
    async with two_pools(plain, speculating) as client:
        stats_of(await collect(client, request("a", speculation=SHADOW)))
        await until(lambda: speculating.asked)
        assert client.health().detail == "", "one replay takes no pool down"
    assert len(plain.asked) == 1


@pytest.mark.parametrize(
    ("choice", "plan"),
    [
        (SpeculationChoice("off"), SpecPlan(num_speculative_tokens=DEPTH)),
        (SHADOW, SpecPlan(num_speculative_tokens=0, reason="killed")),
        (SpeculationChoice("always", num_speculative_tokens=1), SpecPlan(num_speculative_tokens=DEPTH)),
    ],
)
async def test_only_a_request_in_shadow_is_replayed(
    plain: FakeUpstream, speculating: FakeUpstream, choice: SpeculationChoice, plan: SpecPlan
) -> None:
    async with two_pools(plain, speculating) as client:
        client.send(ApplyPlan(plan))
        stats_of(await collect(client, request("a", speculation=choice)))
        await asyncio.sleep(0.1)
    assert speculating.asked == []


async def test_replays_keep_to_their_share_of_time() -> None:
    clock, asked, ended = Clock(), list[GenerateRequest](), asyncio.Event()

    async def replay(given: GenerateRequest) -> None:
        asked.append(given)
        await ended.wait()

    replays = Replays(replay, clock=clock)
    long = request("a", replace(request().params, max_tokens=10 * MOST_TOKENS))
    for _ in range(3):  # one at once
        replays.offer(long)
        await asyncio.sleep(0)
    clock.now += 2.0
    ended.set()
    await asyncio.sleep(0.01)
    clock.now += 2.0 / SHARE - 2.1
    replays.offer(long)
    clock.now += 0.2
    replays.offer(long)
    await asyncio.sleep(0.01)
    assert [given.params.max_tokens for given in asked] == [MOST_TOKENS, MOST_TOKENS]
    await replays.close()


async def test_a_replay_that_is_refused_ends_alone() -> None:
    clock, asked = Clock(), list[str]()

    async def replay(given: GenerateRequest) -> None:
        asked.append(given.request_id)
        raise EngineError("no")

    replays = Replays(replay, clock=clock)
    for name in ("a", "b"):
        replays.offer(request(name))
        await asyncio.sleep(0.01)
        clock.now += 1.0
    assert asked == ["a", "b"]
