"""A consumer sees one unbroken stream, whenever and however its engines are lost; or one typed end."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from prolepsis.core.client_draft import ClientDraft
from prolepsis.core.config import DRAFT_HEAD, HeadProposerName
from prolepsis.core.engine_client import EngineClient, HeadSwapped
from prolepsis.core.errors import (
    DeadlineExceeded,
    EngineDead,
    InvalidParameter,
    ModelLoadError,
    NotContinued,
)
from prolepsis.core.events import Aborted, Event, Failed, Tokens
from prolepsis.core.messages import Abort, ApplyPlan, InjectFault, OfferDraft, SetCorpora, StopRun
from prolepsis.core.plan import PANIC_PLAN
from prolepsis.core.stats import RequestStats
from prolepsis.remote.engines import Engines
from prolepsis.remote.members import FailoverSettings, Member
from tests.remote.scripted_engines import (
    DEAD,
    ELSEWHERE,
    HERE,
    LENGTH,
    InOrder,
    Item,
    Speaker,
    ask,
    check_whole,
    collect,
    sample,
    token,
)
from tests.virtual_time import virtual_time

LOSSES: dict[str, tuple[Item | str, str]] = {
    "raises": (EngineDead("gone"), "engine_dead"),
    "fails": ("dead", "engine_dead"),
    "is closed": ("aborted", "shutdown"),
    "step": ("step", "step_failed"),
}


def over(*engines: EngineClient, registry: CollectorRegistry | None = None, **settings: object) -> Engines:
    return of([Member(one) for one in engines], registry, FailoverSettings(**settings))  # type: ignore[arg-type]


def of(
    members: Sequence[Member], registry: CollectorRegistry | None = None, settings: FailoverSettings | None = None
) -> Engines:
    return Engines(members, registry, settings, router=InOrder(), clock=asyncio.get_running_loop().time)


def starting(*engines: EngineClient | Exception) -> Callable[[], Awaitable[EngineClient]]:
    """Return a start that gives these engines, one after the other."""
    left = list(engines)

    async def start() -> EngineClient:
        await asyncio.sleep(1.0)
        found = left.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    return start


@pytest.mark.parametrize("how", LOSSES)
@pytest.mark.parametrize("n", [1, 2])
@virtual_time
async def test_cut_at_every_event(n: int, how: str) -> None:
    last, reason = LOSSES[how]
    for count in range(n * LENGTH + 1):
        registry, request = CollectorRegistry(), ask(n=n)
        first, second = Speaker(count, last), Speaker()
        client = over(first, second, registry=registry)
        stats = check_whole(await collect(client, request), request)
        await client.close()
        is_whole = count == n * LENGTH
        assert len(second.requests) == (0 if is_whole else 1), "what is complete is asked of none"
        marks = [(one.loss, one.num_tokens) for one in stats.continued]
        assert marks == ([] if is_whole else [(reason, count)])
        assert sample(registry, "continuations_total", reason=reason, result="exact") == (0 if is_whole else 1)
        if count and not is_whole:
            begun = second.requests[0].continue_from
            assert begun is not None
            assert (sum(map(len, begun.emitted)), begun.group) == (count, HERE.exact_group)


@virtual_time
async def test_figures_of_all_engines_add_up() -> None:
    client = over(Speaker(2, "dead"), Speaker(1, EngineDead("with its figures")), Speaker(1, "aborted"), Speaker())
    stats = check_whole(await collect(client, ask()), ask())
    assert stats.num_steps == 2 + 1 + 2, "the second engine took its figures with it"
    assert [one.num_tokens for one in stats.continued] == [2, 3, 4]
    assert stats.num_prompt_tokens == 3
    await client.close()


@virtual_time
async def test_an_engine_that_says_nothing_more_is_left_when_its_health_is_bad_twice() -> None:
    silent = Speaker(3)
    client = over(silent, Speaker(), check_s=1.0)
    stream = client.generate(ask())
    events: list[Event] = [await anext(stream) for _ in range(3)]
    waiting = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(5.0)
    assert not waiting.done()
    silent.reported = DEAD
    before = asyncio.get_running_loop().time()
    events.append(await waiting)
    assert asyncio.get_running_loop().time() - before <= 2.0
    events += [event async for event in stream]
    stats = check_whole(events, ask())
    assert [one.loss for one in stats.continued] == ["not_alive"]
    assert silent.aborted == ["r"], "the request was taken from it"
    await client.close()


class NoSwaps(Speaker):
    """Has no room for another head."""

    async def swap_head(self, name: str, proposer: HeadProposerName = DRAFT_HEAD) -> HeadSwapped:
        raise ModelLoadError(f"no room for {name}")


async def test_a_head_that_one_engine_cannot_use_is_taken_out_of_the_others() -> None:
    engines = [Speaker(), NoSwaps()]
    client = of([Member(engine) for engine in engines])
    with pytest.raises(ModelLoadError, match="no room for head@2"):
        await client.swap_head("head@2")
    assert engines[0].swaps == ["head@2", "none"]
    assert engines[0].info.draft_head is None
    await client.close()


async def test_a_fault_reaches_all_engines_and_one_dies() -> None:
    engines = [Speaker(), Speaker()]
    client = over(*engines)
    client.send(InjectFault("slow"))
    client.send(InjectFault("die"))
    assert [engine.faults for engine in engines] == [["slow", "die"], ["slow"]]
    await client.close()


@virtual_time
async def test_a_lost_engine_is_started_again_and_told_what_the_others_know() -> None:
    again = Speaker()
    member = Member(Speaker(2, "dead"), starting(RuntimeError("no memory"), again))
    registry = CollectorRegistry()
    client = of([member], registry)
    client.send(ApplyPlan(PANIC_PLAN))
    client.send(StopRun("run#1"))
    client.send(SetCorpora("tenant:a", (b"text",)))
    await client.swap_head("head@2")
    stats = check_whole(await collect(client, ask()), ask())
    assert (again.plans, again.stopped, again.swaps) == ([PANIC_PLAN], ["run#1"], ["head@2"])
    assert again.corpora == {"tenant:a": (b"text",)}
    assert stats.continued[0].pause_s >= 2.0
    assert sample(registry, "engine_restarts_total", result="started") == 1
    assert sample(registry, "engine_restarts_total", result="failed") == 1
    assert sample(registry, "continuation_pause_seconds_count") == 1
    await client.close()
    assert again.closed


@virtual_time
async def test_readiness_tells_of_a_restart() -> None:
    client = of([Member(Speaker(0, "dead"), starting(Speaker()))])
    waiting = asyncio.ensure_future(collect(client, ask()))
    await asyncio.sleep(0.5)
    health = client.health()
    assert (health.alive, health.ready) == (True, False)
    assert "starting the engine again: the engine ended" in health.detail
    check_whole(await waiting, ask())
    assert client.health().ready
    await client.close()


@virtual_time
async def test_new_requests_wait_for_a_restart_and_not_for_ever() -> None:
    client = of([Member(Speaker(0, "dead"), starting(Speaker()))])
    first = asyncio.ensure_future(collect(client, ask("first")))
    await asyncio.sleep(0.1)
    check_whole(await collect(client, ask("second")), ask("second"))
    check_whole(await first, ask("first"))
    await client.close()
    client = of([Member(Speaker(0, "dead"), starting(Speaker()))], settings=FailoverSettings(wait_s=0.5))
    (end,) = await collect(client, ask())
    assert isinstance(end, Failed)
    assert isinstance(end.error, NotContinued)
    assert (end.error.reason, str(end.error)) == ("no_engine", "no engine was available within 0.5 s")
    await client.close()


@virtual_time
async def test_a_deadline_that_comes_before_the_next_engine_is_a_deadline() -> None:
    """Its client was told that no engine is there (503) of a time limit of its own (504)."""
    client = of([Member(Speaker(0, "dead"), starting(Speaker()))])
    (lost,) = await collect(client, ask("lost", deadline_s=0.5))
    assert isinstance(lost, Failed)
    assert isinstance(lost.error, DeadlineExceeded)
    await client.close()
    client = of([Member(Speaker(0, "dead"), starting(Speaker()))])
    first = asyncio.ensure_future(collect(client, ask("first")))
    await asyncio.sleep(0.1)
    with pytest.raises(DeadlineExceeded, match=r"not finished in 0\.500 s, as no engine was available"):
        await collect(client, ask("new", deadline_s=0.5))
    await first
    await client.close()


@virtual_time
async def test_an_engine_that_died_while_nothing_ran_is_waited_for() -> None:
    """Nothing has told of its end yet: its health is bad, and the watch has not looked."""
    gone = Speaker()
    client = of([Member(gone, starting(Speaker()))])
    check_whole(await collect(client, ask("before")), ask("before"))
    gone.reported = DEAD
    check_whole(await collect(client, ask()), ask())
    assert len(gone.requests) == 1
    await client.close()


@virtual_time
async def test_an_engine_that_died_before_the_first_request_is_started_again() -> None:
    dead = Speaker()
    dead.reported = DEAD
    client = of([Member(dead, starting(Speaker()))])
    assert not client.health().ready
    await asyncio.sleep(5.0)
    assert client.health().ready
    await client.close()


@virtual_time
async def test_an_engine_that_never_starts_is_given_up() -> None:
    faults = [RuntimeError("broken")] * 5
    client = of([Member(Speaker(0, "dead"), starting(*faults))])
    (end,) = await collect(client, ask())
    assert isinstance(end, Failed)
    assert isinstance(end.error, NotContinued)
    assert end.error.reason == "no_engine"
    health = client.health()
    assert (health.alive, health.ready) == (False, False)
    assert "the engine stays away: the engine did not start: broken" in health.detail
    with pytest.raises(EngineDead, match="no engine is left"):
        await collect(client, ask())
    with pytest.raises(EngineDead):
        await client.heads()
    await client.close()


@virtual_time
async def test_a_request_that_ends_engines_is_stopped() -> None:
    """It may be the one that they cannot bear."""
    registry = CollectorRegistry()
    client = over(*(Speaker(0, "dead") for _ in range(9)), registry=registry)
    (end,) = await collect(client, ask())
    assert isinstance(end, Failed)
    assert isinstance(end.error, NotContinued)
    assert end.error.reason == "too_often"
    assert "lost 3 engines before" in str(end.error)
    assert sample(registry, "continuations_refused_total", reason="too_often") == 1
    assert client.health().alive, "five engines are left"
    await client.close()


@virtual_time
async def test_failed_steps_are_tried_again_once() -> None:
    failing = Speaker(1, "step")
    client = over(failing)
    *_, end = await collect(client, ask())
    assert isinstance(end, Failed)
    assert len(failing.requests) == 2
    assert client.health().alive, "the engine was not lost"
    await client.close()


@virtual_time
async def test_another_group_is_refused_or_marked() -> None:
    client = over(Speaker(2, "dead"), Speaker(info=ELSEWHERE))
    *_, end = await collect(client, ask())
    assert isinstance(end, Failed)
    assert isinstance(end.error, NotContinued)
    assert end.error.reason == "other_group"
    assert "forward fake recorded, another here" in str(end.error)
    await client.close()
    elsewhere = Speaker(info=ELSEWHERE)
    registry = CollectorRegistry()
    client = over(Speaker(2, "dead"), elsewhere, registry=registry, outside_group="continue")
    stats = check_whole(await collect(client, ask()), ask())
    assert stats.not_exact == ("forward fake recorded, another here",)
    begun = elsewhere.requests[0].continue_from
    assert begun is not None
    assert begun.outside_group == "continue"
    assert sample(registry, "continuations_total", reason="engine_dead", result="not_exact") == 1
    await client.close()


@virtual_time
async def test_an_answer_that_has_not_begun_may_begin_anywhere() -> None:
    elsewhere = Speaker(info=ELSEWHERE)
    client = over(Speaker(0, "dead"), elsewhere)
    check_whole(await collect(client, ask()), ask())
    assert elsewhere.requests[0].continue_from is None
    await client.close()


@virtual_time
async def test_another_context_length_is_another_group() -> None:
    """An answer may end with the context."""
    client = over(Speaker(2, "dead"), Speaker(info=replace(HERE, max_model_len=1024)))
    *_, end = await collect(client, ask())
    assert isinstance(end, Failed)
    assert "max_model_len 512 recorded, 1024 here" in str(end.error)
    await client.close()


@virtual_time
async def test_a_stream_that_another_engine_refuses_ends() -> None:
    client = over(Speaker(2, "dead"), Speaker(0, InvalidParameter("too much", param="continue_from")))
    *_, end = await collect(client, ask())
    assert isinstance(end, Failed)
    assert isinstance(end.error, NotContinued)
    assert (end.error.reason, str(end.error)) == ("refused", "not taken up: too much")
    await client.close()


@virtual_time
async def test_an_engine_that_has_not_ended_the_request_yet_is_asked_again() -> None:
    in_use = InvalidParameter("request_id 'r' is in use; allowed: a new one", param="request_id")
    client = over(Speaker(2, "dead"), Speaker(0, in_use), Speaker(), max_losses=2)
    stats = check_whole(await collect(client, ask()), ask())
    assert [(one.loss, one.num_tokens) for one in stats.continued] == [("engine_dead", 2)]
    assert client.health().num_running == 2, "it has not lost the engine that refuses"
    await client.close()


@virtual_time
async def test_other_errors_than_losses_reach_the_consumer() -> None:
    failed = Failed("r", DeadlineExceeded("late"), RequestStats())
    other = Speaker()
    client = over(Speaker(1, failed), other)
    *_, end = await collect(client, ask())
    assert end is failed
    assert other.requests == []
    await client.close()


@virtual_time
async def test_replays_stay_with_their_engine() -> None:
    other = Speaker()
    client = over(Speaker(1, "dead"), other)
    *_, end = await collect(client, ask(emitted=((token(0, 0),),)))
    assert isinstance(end, Failed)
    assert isinstance(end.error, NotContinued)
    assert end.error.reason == "replay"
    assert other.requests == []
    await client.close()


@virtual_time
async def test_the_deadline_counts_from_the_first_arrival() -> None:
    second = Speaker()
    client = over(Speaker(2, 3.0, "dead"), second)
    check_whole(await collect(client, ask(deadline_s=10.0)), ask())
    assert second.requests[0].deadline_s == pytest.approx(7.0, abs=0.1)
    await client.close()


@virtual_time
async def test_drafts_of_clients_reach_the_engine_that_serves_now() -> None:
    first, second = Speaker(2, "dead"), Speaker()
    client, draft = over(first, second), ClientDraft(5, (1, 2))
    stream = client.generate(ask())
    for _ in range(3):
        await anext(stream)
    client.send(OfferDraft("r", draft))
    client.send(OfferDraft("unknown", draft))
    assert (first.offered, second.offered) == ([], [("r", draft)])
    await stream.aclose()
    await client.close()


@virtual_time
async def test_aborts_reach_the_engine_that_serves_now_and_streams_that_wait() -> None:
    second = Speaker(1)
    client = over(Speaker(2, "dead"), second)
    stream = client.generate(ask())
    for _ in range(3):
        await anext(stream)
    client.send(Abort("r"))
    client.send(Abort("unknown"))
    assert isinstance(await anext(stream), Aborted)
    assert second.aborted == ["r"]
    await client.close()
    client = of([Member(Speaker(2, "dead"), starting(Speaker()))])
    waiting = asyncio.ensure_future(collect(client, ask()))
    await asyncio.sleep(0.5)
    client.send(Abort("r"))
    assert isinstance((await waiting)[-1], Aborted)
    await client.close()


@virtual_time
async def test_closing_the_iterator_early_aborts() -> None:
    engine = Speaker(2)
    client = over(engine)
    stream = client.generate(ask())
    await anext(stream)
    with pytest.raises(InvalidParameter, match="in use"):
        await collect(client, ask())
    await stream.aclose()
    assert engine.aborted == ["r"]
    engine.say = None
    check_whole(await collect(client, ask()), ask())
    await client.close()


@virtual_time
async def test_closing_it_ends_all_streams_once() -> None:
    engine, lost = Speaker(2), of([Member(Speaker(1, "dead"), starting(Speaker()))])
    client = over(engine)
    running, waiting = (asyncio.ensure_future(collect(one, ask())) for one in (client, lost))
    await asyncio.sleep(0.5)
    await asyncio.gather(client.close(), lost.close())
    for events in (await running, await waiting):
        assert isinstance(events[-1], Aborted)
        assert sum(not isinstance(event, Tokens) for event in events) == 1


@virtual_time
async def test_tokens_out_of_place_end_the_stream() -> None:
    repeated = Tokens("r", 0, (9,), position=0)
    client = over(Speaker(2, repeated))
    *_, end = await collect(client, ask())
    assert isinstance(end, Failed)
    assert end.error.code == "tokens_out_of_place"
    await client.close()


@virtual_time
async def test_streams_spread_over_engines() -> None:
    engines = [Speaker(1), Speaker(1), Speaker(1)]
    client = over(*engines)
    streams = [client.generate(ask(str(i))) for i in range(6)]
    for stream in streams:
        await anext(stream)
    assert [len(engine.requests) for engine in engines] == [2, 2, 2]
    for stream in streams:
        await stream.aclose()
    await client.close()
