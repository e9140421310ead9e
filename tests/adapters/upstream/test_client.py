"""Two pools seen as one engine: who serves a request, what it reports, and what happens when a pool is gone."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from prolepsis.adapters.upstream.client import UpstreamClient
from prolepsis.adapters.upstream.metrics import UpstreamMetrics
from prolepsis.adapters.upstream.pool import PoolLost
from prolepsis.core.config import UPSTREAM, UpstreamApi
from prolepsis.core.errors import (
    ContextTooLong,
    EngineError,
    GrammarFailed,
    InvalidParameter,
    ProlepsisError,
    UpstreamUnavailable,
)
from prolepsis.core.events import Event, Failed, Finished, Terminal, Tokens
from prolepsis.core.messages import ApplyPlan, StopRun
from prolepsis.core.plan import DisabledProposer, SpecPlan
from prolepsis.core.requests import GenerateRequest, GrammarSpec, SamplingParams, SpeculationChoice
from prolepsis.core.stats import RequestStats
from tests.adapters.upstream.fakes import (
    APIS,
    DEPTH,
    EVENTS,
    FakeUpstream,
    client_of,
    lines,
    pool_at,
    request,
    two_pools,
)
from tests.loopback import Reply, Request, serving
from tests.server.conftest import served
from tests.server.fakes import FakeEngine

OFF = SpeculationChoice("off")
CONTROL = SpeculationChoice("off", may_fall_back=True)


async def collect(client: UpstreamClient, asked: GenerateRequest) -> list[Event]:
    return [event async for event in client.generate(asked)]


def text_of(events: list[Event], index: int = 0) -> bytes:
    tokens = [event for event in events if isinstance(event, Tokens) and event.index == index]
    return bytes(token for event in tokens for token in event.token_ids)


def end_of(events: list[Event]) -> Terminal:
    *before, last = events
    assert isinstance(last, Terminal)
    assert not any(isinstance(event, Terminal) for event in before), "it has one terminal event"
    return last


def stats_of(events: list[Event]) -> RequestStats:
    last = end_of(events)
    assert isinstance(last, Finished), last
    return last.stats


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
async def client(
    plain: FakeUpstream, speculating: FakeUpstream, registry: CollectorRegistry
) -> AsyncIterator[UpstreamClient]:
    async with two_pools(plain, speculating, registry) as made:
        yield made


@pytest.mark.parametrize("api", APIS)
async def test_the_pool_is_chosen_by_the_request(api: UpstreamApi) -> None:
    plain, speculating = FakeUpstream(api), FakeUpstream(api, drafts=(3, 12, 4))
    async with two_pools(plain, speculating) as client:
        on, off = await collect(client, request("a")), await collect(client, request("b", speculation=OFF))
    assert (len(speculating.asked), len(plain.asked)) == (1, 1)
    assert text_of(on) == text_of(off) == b"hello world"
    figures = stats_of(on)
    assert (figures.mode.mode, figures.mode.reason) == ("on", "speculating")
    counts = figures.proposers[UPSTREAM]
    assert (counts.num_draft_tokens, counts.num_accepted) == (12, 4)
    assert (figures.num_output_tokens, figures.num_steps) == (11, 7)
    assert (stats_of(off).mode.mode, stats_of(off).mode.reason) == ("off", "requested_off")
    assert stats_of(off).num_steps == 11


async def test_drafts_that_are_not_reported_are_not_known(client: UpstreamClient, speculating: FakeUpstream) -> None:
    speculating.drafts = None
    stats = stats_of(await collect(client, request()))
    assert (stats.mode.mode, stats.mode.reason) == ("on", "not_reported")
    assert (stats.proposers, stats.num_steps) == ({}, 0)


@pytest.mark.parametrize(
    ("api", "drafts", "accepted", "judged"),
    [
        ("vllm", (40, 160, 30), [20, 15, 0, 5, 0], (40, 20)),
        ("sglang", (40, 160, 0), [40], (40, 0)),
        ("sglang", (40, 160, 30), None, (40, 30)),
        ("llama.cpp", (0, 42, 3), None, (11, 3)),  # of at most 4 tokens each, so there were 11 at least
    ],
)
async def test_what_a_pool_says_of_drafts_is_counted_by_class_and_tenant(
    api: UpstreamApi, drafts: tuple[int, int, int], accepted: list[int] | None, judged: tuple[int, int]
) -> None:
    asked = request(traffic_class="chat", kill_scopes=frozenset({"tenant:bank"}))
    async with two_pools(FakeUpstream(api), FakeUpstream(api, drafts=drafts, accepted=accepted)) as client:
        stats = stats_of(await collect(client, asked))
        await collect(client, request("b", traffic_class="chat", speculation=OFF))
        [counts] = client.proposer_counts()
    assert (counts.proposer, counts.traffic_class) == (UPSTREAM, "chat")
    assert (counts.num_asked, counts.num_judged, counts.num_right) == (1, *judged)
    assert [(part.tenant, part.num_judged) for part in counts.tenants] == [("bank", judged[0])]
    shown = stats.judged.get(UPSTREAM, [])
    assert (len(shown), sum(draft.right for draft in shown)) == (judged if accepted else (0, 0))


async def test_very_many_drafts_are_shown_by_a_few(client: UpstreamClient, speculating: FakeUpstream) -> None:
    speculating.drafts, speculating.accepted = (1000, 1000, 250), [750, 250]
    judged = stats_of(await collect(client, request())).judged[UPSTREAM]
    assert (len(judged), sum(draft.right for draft in judged)) == (64, 16)


async def test_a_half_open_breaker_lets_as_many_samples_through_as_it_grants(
    client: UpstreamClient, speculating: FakeUpstream
) -> None:
    trials = DisabledProposer(UPSTREAM, "chat", num_trials=2, trial_round=1)
    client.send(ApplyPlan(SpecPlan(num_speculative_tokens=DEPTH, disabled=(trials,))))
    modes = [stats_of(await collect(client, request(name, traffic_class="chat"))).mode for name in "abc"]
    assert [mode.reason for mode in modes] == ["speculating", "speculating", "breaker_open"]
    assert len(speculating.asked) == 2


async def test_the_kill_switch_and_stopped_runs_hold_from_the_next_request_on(
    client: UpstreamClient, plain: FakeUpstream
) -> None:
    client.send(ApplyPlan(SpecPlan(version=3, num_speculative_tokens=0, reason="killed")))
    killed = stats_of(await collect(client, request("a")))
    assert (killed.mode.reason, killed.mode.plan_version) == ("killed", 3)
    client.send(ApplyPlan(SpecPlan(version=4, num_speculative_tokens=DEPTH)))
    client.send(StopRun("r#1"))
    stopped = stats_of(await collect(client, request("b", speculation=SpeculationChoice(rollout_run="r#1"))))
    assert stopped.mode.reason == "rolled_back"
    assert stats_of(await collect(client, request("c"))).mode.reason == "speculating"
    assert len(plain.asked) == 2


async def test_samples_are_requests_of_their_own(client: UpstreamClient, speculating: FakeUpstream) -> None:
    events = await collect(client, request(params=SamplingParams(temperature=0.8, seed=1, max_tokens=64), n=2))
    assert text_of(events, 0) == text_of(events, 1) == b"hello world"
    assert len({body["seed"] for body in speculating.asked}) == 2
    stats = stats_of(events)
    assert stats.num_output_tokens == 22
    assert stats.proposers[UPSTREAM].num_draft_tokens == 24


@pytest.mark.parametrize("num", [0, 2])
async def test_log_probabilities_are_those_of_the_pool(client: UpstreamClient, num: int) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=5, logprobs=num)
    events = await collect(client, request(params=params))
    found = [one for event in events if isinstance(event, Tokens) for one in event.logprobs or ()]
    assert [one.logprob for one in found] == [-2.5] * 5
    assert {one.top for one in found} == {((0, -0.1), (1, -0.2))[:num]}


async def test_missing_log_probabilities_fail_the_request_and_not_the_pool(
    client: UpstreamClient, speculating: FakeUpstream
) -> None:
    speculating.says_logprobs = False
    with pytest.raises(EngineError, match="0 log-probabilities of 2 tokens"):
        await collect(client, request(params=SamplingParams(logprobs=1)))
    assert client.health().detail == ""


async def test_the_time_of_a_pool_is_charged(client: UpstreamClient) -> None:
    device = stats_of(await collect(client, request())).device
    assert device.prefill > 0.0
    assert device.total == pytest.approx(device.prefill + device.plain)
    assert device.predicted_plain == 0.0, "nothing predicts it"


@pytest.mark.parametrize(
    ("gone", "choice", "mode"),
    [("speculating", SpeculationChoice(), "off"), ("plain", CONTROL, "on")],
)
async def test_requests_of_a_pool_that_is_gone_go_to_the_other_one(
    plain: FakeUpstream, speculating: FakeUpstream, gone: Any, choice: SpeculationChoice, mode: str
) -> None:
    with serving(plain) as plain_url, serving(speculating) as speculating_url:
        urls = {"plain": plain_url, "speculating": speculating_url}
        pools = [pool_at(url, name) for name, url in urls.items()]  # type: ignore[arg-type]
        for pool in pools:
            pool.up(await asyncio.to_thread(pool.check))
        with serving(plain) as closed:
            pass
        lost = next(pool for pool in pools if pool.name == gone)
        lost.url = closed
        client = client_of(pools)
        for request_id in ("a", "b"):
            events = await collect(client, request(request_id, speculation=choice))
            assert text_of(events) == b"hello world"
            assert (stats_of(events).mode.mode, stats_of(events).mode.reason) == (mode, "pool_down")
        assert not lost.is_up
        assert client.health().ready
        assert f"{gone} pool" in client.health().detail
        lost.url = urls[gone]
        await client.look(lost)
        assert lost.is_up
        assert stats_of(await collect(client, request("c", speculation=choice))).mode.reason != "pool_down"
        await client.close()


@pytest.mark.parametrize("choice", [OFF, SpeculationChoice("off", "rule_off"), SpeculationChoice("shadow")])
async def test_a_request_that_is_pinned_plain_is_refused_while_the_plain_pool_is_gone(
    client: UpstreamClient, plain: FakeUpstream, speculating: FakeUpstream, choice: SpeculationChoice
) -> None:
    plain.status = 500
    for number in range(2):
        with pytest.raises(UpstreamUnavailable, match=r"plain pool: .*the request is to be plain"):
            await collect(client, request(str(number), speculation=choice))
    assert speculating.asked == []
    assert "plain pool: answered 500" in client.health().detail


async def test_a_killed_request_fails_rather_than_speculates(client: UpstreamClient, plain: FakeUpstream) -> None:
    plain.status = 500
    client.send(ApplyPlan(SpecPlan(num_speculative_tokens=0, reason="killed")))
    with pytest.raises(UpstreamUnavailable, match="plain pool: answered 500: no such thing"):
        await collect(client, request("a"))
    client.send(ApplyPlan(SpecPlan(num_speculative_tokens=0, reason="overload_plain")))
    assert stats_of(await collect(client, request("b"))).mode.mode == "on"


async def test_without_any_pool_requests_are_refused(
    client: UpstreamClient, plain: FakeUpstream, speculating: FakeUpstream
) -> None:
    plain.status = speculating.status = 502
    for _ in range(2):
        with pytest.raises(UpstreamUnavailable, match=r"speculating pool: .*; plain pool: "):
            await collect(client, request())
    assert not client.health().ready


async def test_a_busy_pool_stays_up(client: UpstreamClient, speculating: FakeUpstream) -> None:
    speculating.status = 429
    assert stats_of(await collect(client, request("a"))).mode.reason == "pool_down"
    speculating.status = 200
    assert stats_of(await collect(client, request("b"))).mode.reason == "speculating"


@pytest.mark.parametrize("healthy", [True, False])
async def test_a_request_that_a_pool_fails_at_does_not_take_a_healthy_pool_away_from_others(
    client: UpstreamClient, speculating: FakeUpstream, healthy: bool
) -> None:
    speculating.fault, speculating.healthy = "Internal server error", healthy
    events = await collect(client, request("a"))
    assert (text_of(events), stats_of(events).mode.reason) == (b"hello world", "pool_down")
    speculating.fault = ""
    assert stats_of(await collect(client, request("b"))).mode.reason == ("speculating" if healthy else "pool_down")


async def test_a_stream_that_breaks_off_goes_on_in_the_other_pool(
    client: UpstreamClient, plain: FakeUpstream, speculating: FakeUpstream, registry: CollectorRegistry
) -> None:
    speculating.cut_after = 250
    events = await collect(client, request())
    assert text_of(events) == b"hello world"
    stats = stats_of(events)
    [continued] = stats.continued
    assert 0 < continued.num_tokens < 11
    assert stats.not_exact == ("another pool went on after the tokens as after a prompt",)
    assert (stats.num_output_tokens, stats.mode.reason) == (11, "not_reported")
    [body] = plain.asked
    assert bytes(body["prompt"]) == b"hi" + b"hello world"[: continued.num_tokens]
    assert body["max_tokens"] == 64 - continued.num_tokens
    outcomes = {
        (sample.labels["pool"], sample.labels["outcome"]): sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name == "prolepsis_upstream_answers_total"
    }
    assert outcomes == {("speculating", "lost"): 1.0, ("plain", "finished"): 1.0}


@pytest.mark.parametrize(
    "more", [{"grammar": GrammarSpec("regex", ".*")}, {"params": SamplingParams(presence_penalty=1.0, max_tokens=64)}]
)
async def test_a_stream_that_cannot_go_on_fails_once(
    client: UpstreamClient, plain: FakeUpstream, speculating: FakeUpstream, more: Any
) -> None:
    speculating.cut_after = 250
    last = end_of(await collect(client, request(**more)))
    assert isinstance(last, Failed)
    assert isinstance(last.error, UpstreamUnavailable)
    assert plain.asked == []


async def test_a_stream_that_ends_without_an_end_is_lost(client: UpstreamClient, speculating: FakeUpstream) -> None:
    speculating.text = b""
    plain_events = await collect(client, request(speculation=OFF))
    assert text_of(plain_events) == b"hello world"
    speculating.cut_after = 0
    assert stats_of(await collect(client, request("b"))).mode.reason == "pool_down"


CODE = '{"type": "object", "properties": {"code": {"type": "string", "pattern": "^[A-Z]{2}$"}}, "required": ["code"]}'


@pytest.mark.parametrize(
    ("text", "stop", "fault"),
    [
        (b'{"code": "AB"}', (), ""),
        (b'{"code": "ab"}', (), "\\$.code: 'ab' does not match"),
        (b'{"code": 12}', (), "12 is not of type 'string'"),
        (b'{"code"', (), "it is no JSON"),
        (b'{"code"', ("}",), ""),  # it may be cut by its client
    ],
)
async def test_an_answer_of_llamacpp_is_checked_against_its_schema(
    text: bytes, stop: tuple[str, ...], fault: str
) -> None:
    plain = FakeUpstream("llama.cpp", text=text)
    async with two_pools(plain, FakeUpstream("llama.cpp", text=text)) as client:
        params = SamplingParams(max_tokens=64, stop=stop)
        events = await collect(client, request(grammar=GrammarSpec("json_schema", CODE), params=params))
    last = end_of(events)
    if not fault:
        assert isinstance(last, Finished)
        return
    assert isinstance(last, Failed)
    assert isinstance(last.error, GrammarFailed)
    assert re.search(fault, str(last.error))
    assert not any(isinstance(event, Tokens) and event.finish_reason for event in events), (
        "it is not handed out as whole"
    )


async def test_what_an_engine_refuses_is_refused_in_its_words(
    client: UpstreamClient, speculating: FakeUpstream
) -> None:
    speculating.status = 400
    with pytest.raises(InvalidParameter, match="no such thing"):
        await collect(client, request())
    speculating.status = 200
    assert isinstance(end_of(await collect(client, request())), Finished), "its id is free again, and the pool up"


@pytest.mark.parametrize(
    ("asked", "error", "told"),
    [
        (request(prompt=(1,) * 256), ContextTooLong, "maximum context length is 256 tokens; given: 256 in the prompt"),
        (request(prompt=()), InvalidParameter, "at least 1"),
        (request(prompt=(999,)), InvalidParameter, "0 to 256"),
        (request(params=SamplingParams(temperature=3.0)), InvalidParameter, "temperature"),
    ],
)
async def test_refusals_come_before_the_first_event(
    client: UpstreamClient, asked: GenerateRequest, error: type[ProlepsisError], told: str
) -> None:
    with pytest.raises(error, match=told):
        await collect(client, asked)


async def test_draft_heads_are_refused(client: UpstreamClient) -> None:
    assert await client.heads() == ()
    with pytest.raises(InvalidParameter, match="draft_head is 'mine'; allowed with engine upstream: none"):
        await client.swap_head("mine")


@pytest.mark.parametrize("engine", ["vllm", "llamacpp"])
async def test_metrics_of_the_pool_are_taken_in(
    client: UpstreamClient, speculating: FakeUpstream, registry: CollectorRegistry, engine: str
) -> None:
    text = '# TYPE {2}:spec_decode_num_{0} counter\n{2}:spec_decode_num_{0}_total{{engine="0"}} {1}\n'
    pool = client._pools["speculating"]
    metrics = UpstreamMetrics(own := CollectorRegistry())
    assert await pool.draft_totals() == {}
    for drafted, accepted in ((100.0, 40.0), (160.0, 55.0), (10.0, 5.0)):
        totals = {"draft_tokens": drafted, "accepted_tokens": accepted}
        speculating.metrics = "".join(text.format(name, total, engine) for name, total in totals.items())
        metrics.drafted(await pool.draft_totals())
    assert own.get_sample_value("prolepsis_upstream_draft_tokens_total") == 60.0 + 10.0
    assert own.get_sample_value("prolepsis_upstream_accepted_tokens_total") == 15.0 + 5.0


async def test_a_pool_whose_health_is_bad_is_down_until_a_check_passes(
    client: UpstreamClient, speculating: FakeUpstream
) -> None:
    pool = client._pools["speculating"]
    speculating.healthy = False
    await client.look(pool)
    assert not pool.is_up
    speculating.max_model_len = 100
    await client.look(pool)
    assert "context has 100 tokens; needed: 256" in client.health().detail
    speculating.max_model_len = 256
    await client.look(pool)
    assert pool.is_up


class Held:
    """This server in front of an engine that says three tokens and waits: a pool that speaks vLLM's API."""

    def __init__(self, url: str, engine: FakeEngine) -> None:
        self.engine = engine
        pool = pool_at(url, "plain")
        pool.up(pool.check())
        engine.hold_after = 1
        self.client = client_of([pool])


@pytest.fixture
def held() -> Iterator[Held]:
    engine = FakeEngine("hello world")
    with served(engine) as server:
        yield Held(server.url, engine)


async def test_a_system_call_that_times_out_ends_a_request_without_deadline(
    held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def times_out(*_: object) -> None:
        raise TimeoutError

    monkeypatch.setattr(held.client, "_serve_sample", times_out)
    last = end_of(await collect(held.client, request()))
    assert isinstance(last, Failed)
    assert "has been logged" in str(last.error)
    await held.client.close()


async def test_a_silent_pool_is_lost() -> None:
    engine = FakeEngine("hello world")
    with served(engine) as server:
        pool = pool_at(server.url, "plain", silent_s=0.2)
        pool.up(await asyncio.to_thread(pool.check))
        engine.hold_after = 1
        client = client_of([pool])
        last = end_of(await collect(client, request()))
        assert isinstance(last, Failed)
        assert "ReadTimeout" in str(last.error)
        await client.close()


NOTHING = (b": still there\n\n", b"\n", b'data: {"choices": []}\n\n', b'data: {"choices": [{"token_ids": []}]}\n\n')


@pytest.mark.parametrize("nothing", NOTHING[::2], ids=str)
async def test_a_pool_that_says_no_token_is_lost_however_much_it_says(nothing: bytes) -> None:
    endless = FakeUpstream(raw=b"\n", forever=nothing)
    async with two_pools(endless, endless, silent_s=0.2) as client:
        with pytest.raises(UpstreamUnavailable, match="says no token for 1 s"):
            await collect(client, request())


@pytest.mark.parametrize("nothing", NOTHING, ids=str)
async def test_a_stream_that_goes_on_after_its_end_ends(nothing: bytes) -> None:
    told = lines(EVENTS["vllm"](b"hello", (1, 4, 2)))
    endless = FakeUpstream(raw=told, forever=nothing)
    async with two_pools(endless, endless, silent_s=0.2) as client:
        events = await collect(client, request())
        assert client.health().detail == "", "it has served the request"
    assert text_of(events) == b"hello"
    assert stats_of(events).proposers[UPSTREAM].num_accepted == 2


async def test_a_pool_that_never_comes_to_an_answer_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("CONNECT_S", "CHECK_S"):
        monkeypatch.setattr(f"prolepsis.adapters.upstream.pool.{limit}", 0.2)
    with serving(lambda request: Reply(100, forever=b"HTTP/1.1 100 Continue\r\n\r\n")) as url:
        pool = pool_at(url, "plain")
        with pytest.raises(PoolLost, match=r"does not answer within 0\.2 s"):
            await asyncio.to_thread(pool.check)
        assert not await pool.is_alive()
        assert await pool.draft_totals() == {}
        await pool.close()


async def test_no_cookie_of_a_pool_is_sent_to_it_again() -> None:
    headers: list[Mapping[str, str]] = []
    upstream = FakeUpstream()

    def answer(asked: Request) -> Reply:
        headers.append(asked.headers)
        return replace(upstream(asked), headers={"set-cookie": f"c{len(headers)}=1"})

    with serving(answer) as url:
        pool = pool_at(url, "plain")
        pool.up(await asyncio.to_thread(pool.check))
        client = client_of([pool])
        for number in range(2):
            await collect(client, request(str(number)))
        await client.close()
    assert len(headers) >= 4
    assert not any("cookie" in one for one in headers)
