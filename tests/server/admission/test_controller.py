"""Admission over HTTP: limits, queue, fairness, deadlines, load shedding, draining."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

import httpx2
import pytest
from starlette.requests import HTTPConnection

from prolepsis.control.web.caller import Caller
from prolepsis.control.web.errors import RequestAborted
from prolepsis.control.web.refusals import Refused
from prolepsis.core.config import LimitTerms, ServerConfig
from prolepsis.core.engine_client import Demand
from prolepsis.core.errors import DeadlineExceeded
from prolepsis.core.events import Event, Tokens
from prolepsis.core.messages import Abort
from prolepsis.core.plan import SpecPlan
from prolepsis.core.requests import BACKGROUND, GenerateRequest, SamplingParams
from prolepsis.core.telemetry.metrics import Metrics
from prolepsis.server.admission.controller import TIMEOUT_HEADER, AdmissionController
from prolepsis.server.admission.metrics import AdmissionMetrics
from tests.clock import Clock
from tests.server.admission.conftest import KeyedApp, bearer
from tests.server.fakes import ByteTokenizer, FakeEngine
from tests.waiting import LIMIT_S, until

BODY = {"model": "tiny", "prompt": "Hi", "max_tokens": 40}
ONE_PLACE = ServerConfig(max_in_engine=1)


def waits(gate: AdmissionController, number: int) -> bool:
    return gate.num_waiting == number


def ask(http: httpx2.AsyncClient, key: str = "", **changes: object) -> "asyncio.Task[httpx2.Response]":
    headers = bearer(key) if key else {}
    return asyncio.create_task(http.post("/v1/completions", json=BODY | changes, headers=headers))


async def end_all(engine: FakeEngine, tasks: "list[asyncio.Task[httpx2.Response]]") -> list[httpx2.Response]:
    """Release held answers one after the other until all tasks have theirs."""
    while not all(task.done() for task in tasks):
        for request in engine.requests:
            engine.send(Abort(request.request_id))
        await asyncio.sleep(0.005)
    return [task.result() for task in tasks]


async def test_no_more_than_the_places_are_in_the_engine(keyed_app: KeyedApp) -> None:
    engine = FakeEngine(hold_after=0)
    async with keyed_app.open(engine, ServerConfig(max_in_engine=3)) as http:
        tasks = [ask(http) for _ in range(6)]
        await until(lambda: keyed_app.app.state.admission.num_waiting == 3)
        assert len(engine.requests) == 3
        large = ask(http, n=100)  # more samples than places: alone, and not never
        await end_all(engine, [*tasks, large])
        assert len(engine.requests) == 7
        assert keyed_app.app.state.admission.num_inside == 0


async def test_a_full_queue_is_429_and_a_full_server_503(keyed_app: KeyedApp) -> None:
    ann, bob, eve = keyed_app.key(tenant="ann"), keyed_app.key(tenant="bob"), keyed_app.key(tenant="eve")
    engine = FakeEngine(hold_after=0)
    config = ServerConfig(max_in_engine=1, limits=LimitTerms(max_queued=3, max_queued_per_tenant=2))
    async with keyed_app.open(engine, config) as http:
        gate = keyed_app.app.state.admission
        tasks = [ask(http, ann)]
        await until(lambda: engine.requests)
        for number, key in enumerate((ann, ann, bob), 1):
            tasks.append(ask(http, key))
            await until(partial(waits, gate, number))
        refused = await ask(http, eve)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "server_full")
        assert int(refused.headers["retry-after"]) >= 1
        tasks.pop().cancel()
        await until(lambda: gate.num_waiting == 2)
        refused = await ask(http, ann)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
        assert int(refused.headers["retry-after-ms"]) >= 1000
        tasks.pop(-1)
        await end_all(engine, tasks)
    assert (keyed_app.refused("queue_full"), keyed_app.refused("server_full")) == (1, 1)


class RecordingTokenizer(ByteTokenizer):
    """Keeps the texts that it encoded."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        self.texts.append(text)
        return super().encode(text, add_special_tokens=add_special_tokens)


async def test_refused_requests_are_not_tokenised(keyed_app: KeyedApp) -> None:
    tokenizer = RecordingTokenizer()
    key, chat = keyed_app.key(), {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
    async with keyed_app.open(FakeEngine(), ServerConfig(requests_per_minute={"key": 1}), tokenizer) as http:
        assert (await ask(http, key)).status_code == 200
        assert len(tokenizer.texts) == 1
        assert (await ask(http, key, stream=True)).status_code == 429
        keyed_app.app.state.admission.drain()
        assert (await http.post("/v1/chat/completions", json=chat, headers=bearer(key))).status_code == 503
    assert len(tokenizer.texts) == 1
    assert (keyed_app.refused("rate_limited"), keyed_app.refused("draining")) == (1, 1)


async def test_a_client_that_leaves_the_queue_leaves_no_trace(keyed_app: KeyedApp) -> None:
    engine = FakeEngine(hold_after=0)
    async with keyed_app.open(engine, ONE_PLACE) as http:
        gate = keyed_app.app.state.admission
        first = ask(http)
        await until(lambda: engine.requests)
        waiting = [ask(http, stream=bool(i % 2)) for i in range(4)]
        await until(lambda: gate.num_waiting == 4)
        for task in waiting:
            task.cancel()
        await until(lambda: gate.num_waiting == 0)
        assert gate.num_inside == 1
        await end_all(engine, [first])
        assert len(engine.requests) == 1
        assert (gate.num_inside, gate._taken) == (0, 0)


async def test_rate_limits_are_shown_reserved_and_refunded(keyed_app: KeyedApp) -> None:
    key = keyed_app.key()
    limits = ServerConfig(tokens_per_minute={"key": 100}, requests_per_minute={"key": 50})
    async with keyed_app.open(FakeEngine(text="abc"), limits) as http:
        for remaining in (58, 52, 46):  # 2 prompt tokens and at most 40; used are 2 + 4
            response = await ask(http, key)
            assert response.status_code == 200
            assert abs(int(response.headers["x-ratelimit-remaining-tokens"]) - remaining) <= 2
            assert response.headers["x-ratelimit-limit-requests"] == "50"
        streamed = await ask(http, key, stream=True)
        assert "x-ratelimit-reset-tokens" in streamed.headers
        refused = await ask(http, key, max_tokens=98)
        assert (refused.status_code, refused.json()["error"]["type"]) == (429, "tokens")
        assert refused.json()["error"]["code"] == "rate_limit_exceeded"
        assert float(refused.headers["retry-after"]) >= 1
        assert "x-request-id" in refused.headers


async def test_several_prompts_are_let_in_and_charged_as_one(keyed_app: KeyedApp) -> None:
    key, engine = keyed_app.key(), FakeEngine(text="abc")
    limits = ServerConfig(
        tokens_per_minute={"key": 300},
        requests_per_minute={"key": 50},
        max_in_engine=1,
        limits=LimitTerms(max_queued_per_tenant=2),
    )
    async with keyed_app.open(engine, limits) as http:
        reply = await ask(http, key, prompt=["Hi"] * 3)
        assert reply.status_code == 200
        assert reply.headers["x-ratelimit-remaining-requests"] == "49"
        assert abs(int(reply.headers["x-ratelimit-remaining-tokens"]) - (300 - 3 * 42)) <= 2
        for stream in (False, True):
            refused = await ask(http, key, prompt=["Hi"] * 4, stream=stream)
            error = refused.json()["error"]
            assert (refused.status_code, error["code"], error["param"]) == (400, "invalid_value", "prompt")
            assert error["message"].startswith("prompt holds 4 prompts; allowed: 3 at once")
            assert "retry-after" not in refused.headers
        assert len(engine.requests) == 3
        reply = await ask(http, key)
        assert abs(int(reply.headers["x-ratelimit-remaining-tokens"]) - (300 - 3 * 6 - 42)) <= 2
        assert reply.headers["x-ratelimit-remaining-requests"] == "48"


async def test_tokenizing_is_a_request_of_no_tokens(keyed_app: KeyedApp) -> None:
    key, engine = keyed_app.key(), FakeEngine()
    limits = ServerConfig(tokens_per_minute={"key": 300}, requests_per_minute={"key": 3})
    async with keyed_app.open(engine, limits) as http:
        bodies: list[tuple[str, dict[str, object]]] = [
            ("/tokenize", {"prompt": "Hi"}),
            ("/detokenize", {"tokens": [72]}),
        ]
        for left, (path, body) in zip((2, 1), bodies, strict=True):
            reply = await http.post(path, json=body, headers=bearer(key))
            assert reply.status_code == 200
            assert reply.headers["x-ratelimit-remaining-requests"] == str(left)
            assert reply.headers["x-ratelimit-remaining-tokens"] == "300"
        assert (await ask(http, key, max_tokens=4)).status_code == 200
        for path, body in bodies:
            refused = await http.post(path, json=body, headers=bearer(key))
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        keyed_app.app.state.admission.drain()
        for path, body in bodies:
            refused = await http.post(path, json=body, headers=bearer(key))
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "server_draining")
    assert (keyed_app.refused("rate_limited"), keyed_app.refused("draining")) == (2, 2)


@pytest.mark.parametrize(("path", "body"), [("/tokenize", {"prompt": "Hi"}), ("/detokenize", {"tokens": [72]})])
async def test_tokenizing_asks_for_the_models_permission(
    keyed_app: KeyedApp, path: str, body: dict[str, object]
) -> None:
    theirs, other = keyed_app.key(models=("second",)), keyed_app.key(models=("elsewhere",))
    async with keyed_app.open(FakeEngine(), ServerConfig(served_model_names=("first", "second"))) as http:
        for key, model, status in (
            (theirs, None, 200),
            (theirs, "second", 200),
            (theirs, "first", 403),
            (other, None, 403),
            (other, "first", 403),
        ):
            asked = body if model is None else {**body, "model": model}
            assert (await http.post(path, json=asked, headers=bearer(key))).status_code == status


class Gated(FakeEngine):
    """Answers floods all at once, when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Event, None]:
        if request.prompt_token_ids == tuple(b"flood"):
            await self.gate.wait()
        async for event in super().generate(request):
            yield event


async def test_answers_that_end_at_once_let_another_tenants_request_pass(keyed_app: KeyedApp) -> None:
    ann, bob, engine = keyed_app.key(tenant="ann"), keyed_app.key(tenant="bob"), Gated()
    async with keyed_app.open(engine) as http:
        gate = keyed_app.app.state.admission
        flood = [ask(http, ann, prompt="flood") for _ in range(60)]
        await until(lambda: gate._taken == 60)
        engine.gate.set()
        assert (await ask(http, bob)).status_code == 200
        num_ended = sum(task.done() for task in flood)
        assert {reply.status_code for reply in await asyncio.gather(*flood)} == {200}
    assert num_ended < 40, num_ended


async def test_a_deadline_counts_the_queue_and_the_engine(keyed_app: KeyedApp) -> None:
    engine = FakeEngine(hold_after=0)
    async with keyed_app.open(engine, ServerConfig(max_in_engine=1, request_timeout_s=30)) as http:
        first = ask(http)
        await until(lambda: engine.requests)
        headers = {"x-request-timeout-ms": "50"}
        late = await http.post("/v1/completions", json=BODY, headers=headers)
        assert (late.status_code, late.json()["error"]["code"]) == (504, "deadline_exceeded")
        streamed = await http.post("/v1/completions", json=BODY | {"stream": True}, headers=headers)
        assert streamed.status_code == 504
        assert len(engine.requests) == 1
        assert engine.requests[0].deadline_s == pytest.approx(30, abs=1)
        await end_all(engine, [first])
        for wrong in ("0", "-1", "1.5", "soon", "9" * 12):
            response = await http.post("/v1/completions", json=BODY, headers={"x-request-timeout-ms": wrong})
            assert (response.status_code, response.json()["error"]["param"]) == (400, "x-request-timeout-ms")
    assert keyed_app.refused("deadline") == 2


@pytest.mark.parametrize(
    ("configured_s", "asked_ms", "ready", "outcome"),
    [
        pytest.param(None, "10", True, "expired", id="the client's"),
        pytest.param(30, "10", True, "expired", id="the client's, shorter than the server's"),
        pytest.param(0.01, None, True, "failed", id="the server's"),
        pytest.param(0.01, "30000", True, "failed", id="the server's, shorter than the client's"),
        pytest.param(None, "10", False, "failed", id="the client's, of an engine that does not work"),
    ],
)
async def test_a_deadline_that_the_client_set_is_no_failure(
    keyed_app: KeyedApp, configured_s: float | None, asked_ms: str | None, *, ready: bool, outcome: str
) -> None:
    """In the queue and in the engine alike: 2 % of a tenant's requests with such deadlines paged the people on call."""
    engine = FakeEngine(hold_after=0, error=DeadlineExceeded("not finished in 0.010 s"))
    engine.reported = replace(engine.reported, ready=ready)
    config = ServerConfig(max_in_engine=1, request_timeout_s=configured_s)
    async with keyed_app.open(engine, config) as http:
        headers = {TIMEOUT_HEADER: asked_ms} if asked_ms else {}
        in_engine = await http.post("/v1/completions", json=BODY, headers=headers)
        engine.error = None
        first = asyncio.create_task(http.post("/v1/completions", json=BODY, headers={TIMEOUT_HEADER: "29000"}))
        await until(lambda: len(engine.requests) == 2)
        queued = await http.post("/v1/completions", json=BODY, headers=headers)
        assert [in_engine.status_code, queued.status_code] == [504, 504]
        await end_all(engine, [first])
    of = {"route": "/v1/completions", "tier": "standard", "outcome": outcome}
    assert keyed_app.metrics.registry.get_sample_value("prolepsis_requests_total", of) == 2


async def test_priority_is_for_the_own_queue_and_preempts_only_for_operators(keyed_app: KeyedApp) -> None:
    client, operator = keyed_app.key(tenant="a"), keyed_app.key("client", "operator", tenant="b")
    batch = keyed_app.key(tenant="c", tier="batch")
    engine = FakeEngine()
    async with keyed_app.open(engine) as http:
        for key in (client, operator, batch):
            assert (await ask(http, key, priority=-7)).status_code == 200
    assert [request.priority for request in engine.requests] == [0, -7, 3]


async def test_a_draining_server_takes_nothing_new_and_ends_what_it_has(keyed_app: KeyedApp) -> None:
    engine = FakeEngine(hold_after=0)
    async with keyed_app.open(engine, ONE_PLACE) as http:
        gate = keyed_app.app.state.admission
        running = ask(http)
        await until(lambda: engine.requests)
        waiting = ask(http)
        await until(lambda: gate.num_waiting == 1)
        gate.drain()
        refused = await ask(http)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "server_draining")
        assert "retry-after" in refused.headers
        ready = await http.get("/health/ready")
        assert (ready.status_code, ready.json()["detail"]) == (503, "shutting down")
        assert (await http.get("/health/live")).status_code == 200
        gate.end_waiting()
        assert (await waiting).json()["error"]["code"] == "request_aborted"
        await end_all(engine, [running])
        assert (gate.num_inside, gate._taken) == (0, 0)


class Bare:
    """A gate without HTTP, on a clock of its own."""

    def __init__(self, config: ServerConfig) -> None:
        self.clock, self.metrics, self.engine = Clock(), Metrics(), FakeEngine()
        self.started: list[tuple[str, int]] = []
        """Tenants and priorities in the engine of what stays."""
        self.gate = AdmissionController(
            config, self.engine, AdmissionMetrics(self.metrics.registry), SpecPlan(version=5), self.clock
        )

    def caller(self, tenant: str = "t", tier: str = "standard") -> Caller:
        return Caller("k", tenant, frozenset({"client"}), tier)

    @asynccontextmanager
    async def inside(self, caller: Caller, n: int = 1, name: str = "r") -> AsyncIterator[GenerateRequest]:
        http = HTTPConnection({"type": "http", "headers": [], "state": {"caller": caller}})
        request = GenerateRequest(name, (1, 2), SamplingParams(max_tokens=8), n=n)
        with self.gate.admit(http, [request]) as party:
            async with self.gate.start(party, 0) as admitted:
                yield admitted

    async def use(self, caller: Caller, num_tokens: int) -> None:
        """Run a request that generates so many tokens."""
        http = HTTPConnection({"type": "http", "headers": [], "state": {"caller": caller}})
        request = GenerateRequest("r", (1, 2), SamplingParams(max_tokens=num_tokens))
        with self.gate.admit(http, [request]) as party:
            async with self.gate.start(party, 0):
                party.items[0].see(Tokens("r", 0, (1,) * num_tokens, position=0))

    async def stay(self, caller: Caller, leave: asyncio.Event, n: int = 1, name: str = "r") -> None:
        async with self.inside(caller, n, name) as admitted:
            self.started.append((caller.tenant, admitted.priority))
            await leave.wait()

    async def set_places(self, number: int) -> None:
        self.engine.reported = replace(self.engine.reported, max_running=number)
        await self.gate.tick()

    def sample(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"prolepsis_{name}", labels)


async def started(*work: Coroutine[None, None, None]) -> list["asyncio.Task[None]"]:
    tasks = [asyncio.create_task(one) for one in work]
    for _ in range(3):
        await asyncio.sleep(0)
    return tasks


async def test_places_follow_the_engines_that_are_there() -> None:
    bare, first, second = Bare(ServerConfig()), asyncio.Event(), asyncio.Event()
    await bare.set_places(1)
    tasks = await started(bare.stay(bare.caller(), first), bare.stay(bare.caller(), first))
    bare.clock.now += 0.5
    assert bare.gate.demand == Demand(queue_age_s=0.5, num_waiting=1)
    await bare.set_places(3)
    assert bare.gate.demand == Demand(queue_age_s=0.0, num_waiting=0)
    tasks += await started(bare.stay(bare.caller(), second, n=3))
    await bare.set_places(2)
    first.set()
    await asyncio.gather(*tasks[:2])
    assert bare.gate.num_waiting == 0
    await bare.set_places(0)
    assert bare.gate.num_waiting == 0, "engines that say nothing leave the places as they are"
    second.set()
    await asyncio.gather(*tasks)


async def test_a_tenants_first_request_waits_for_no_other_tenants_long_ones() -> None:
    bare, leave, later = (
        Bare(ServerConfig(limits=LimitTerms(max_queued_per_tenant=500))),
        asyncio.Event(),
        asyncio.Event(),
    )
    await bare.set_places(3)
    flood = await started(*(bare.stay(bare.caller("a"), leave) for _ in range(500)))
    tasks = await started(*(bare.stay(bare.caller(tenant), later) for tenant in "bbcde"))
    assert bare.started == [("a", 0), ("a", 1), ("a", 1), ("b", 0), ("c", 0)], "as many as there are places"
    batch = await started(bare.stay(bare.caller("f", "batch"), later))
    assert (bare.gate._taken, bare.gate.num_waiting) == (5, 497 + 3 + 1)
    later.set()
    async with asyncio.timeout(LIMIT_S):
        await asyncio.gather(*tasks)
    assert sorted(bare.started[5:]) == [("b", 0), ("d", 0), ("e", 0)], "in turn, and the flood still waits"
    assert bare.gate._taken == 3
    leave.set()
    async with asyncio.timeout(LIMIT_S):
        await asyncio.gather(*flood, *batch)
    assert (bare.gate._taken, bare.gate._taken_first, len(bare.gate._taken_by)) == (0, 0, 0)


@pytest.mark.parametrize(
    ("tier", "n"), [("batch", 1), ("standard", 3)], ids=["batch work", "more samples than there are places left"]
)
async def test_a_tenants_first_request_passes_what_does_not_fit(tier: str, n: int) -> None:
    bare, leave = Bare(ServerConfig()), asyncio.Event()
    await bare.set_places(3)
    tasks = await started(*(bare.stay(bare.caller("a"), leave) for _ in range(3)))
    tasks += await started(bare.stay(bare.caller("b", tier), leave, n=n))
    tasks += await started(*(bare.stay(bare.caller("c"), leave) for _ in range(2)))
    assert bare.started == [("a", 0), ("a", 1), ("a", 1), ("c", 0)], "once: its second one is behind"
    leave.set()
    async with asyncio.timeout(LIMIT_S):
        await asyncio.gather(*tasks)
    assert [tenant for tenant, _ in bare.started[4:]] == ["b", "c"]


async def test_many_samples_of_one_tenant_keep_no_other_out() -> None:
    bare, leave, later = Bare(ServerConfig()), asyncio.Event(), asyncio.Event()
    await bare.set_places(16)
    tasks = await started(bare.stay(bare.caller("a"), leave, n=16))
    tasks += await started(*(bare.stay(bare.caller(tenant), later, n=2) for tenant in "bc"))
    assert bare.started == [("a", 1), ("b", 0), ("c", 0)], "those of the first give way in the engine"
    for event in (leave, later):
        event.set()
    await asyncio.gather(*tasks)
    assert (bare.gate._taken, bare.gate._taken_first) == (0, 0)


async def test_a_request_for_many_samples_neither_waits_for_an_empty_engine_nor_stops_others() -> None:
    """It starts in its turn where one place is free, holds an eighth of the places, and those behind it follow."""
    bare, leave, later = Bare(ServerConfig()), asyncio.Event(), asyncio.Event()
    await bare.set_places(16)
    tasks = await started(bare.stay(bare.caller("stream"), leave))
    tasks += await started(bare.stay(bare.caller("large"), leave, n=128))
    tasks += await started(*(bare.stay(bare.caller(tenant), later) for tenant in "bbbccc"))
    assert [tenant for tenant, _ in bare.started] == ["stream", "large", *"bbbccc"]
    assert (bare.gate._taken, bare.gate._num_samples) == (1 + 2 + 6, 1 + 128 + 6)
    assert not bare.gate.has_room(None), "nothing in the background runs meanwhile"
    tasks += await started(*(bare.stay(bare.caller("d"), leave) for _ in range(6)))
    tasks += await started(bare.stay(bare.caller("late"), leave, n=64))
    assert (bare.gate._taken, bare.gate.num_waiting) == (16, 0), "one place was free, and it holds no more"
    for event in (later, leave):
        event.set()
    await asyncio.gather(*tasks)
    assert (bare.gate._taken, bare.gate._num_samples, bare.gate._taken_first) == (0, 0, 0)


async def test_a_tenant_that_waits_for_its_share_fills_no_more_than_its_room() -> None:
    """Its first request may displace others in the engine, but it has used much, so theirs are next in turn."""
    bare, leave = Bare(ServerConfig(limits=LimitTerms(max_queued_per_tenant=2))), asyncio.Event()
    await bare.set_places(2)
    await bare.use(bare.caller("b"), 1000)
    others = await started(*(bare.stay(bare.caller("a"), leave) for _ in range(3)))
    tasks = await started(*(bare.stay(bare.caller("b"), leave) for _ in range(50)))
    refused = [task for task in tasks if task.done()]
    assert (len(refused), bare.gate.num_waiting) == (48, 1 + 2)
    for task in refused:
        with pytest.raises(Refused, match="2 requests of this tenant wait already"):
            await task
    leave.set()
    await asyncio.gather(*others, *(task for task in tasks if task not in refused))


async def test_places_that_are_configured_are_not_exceeded() -> None:
    bare, leave = Bare(ONE_PLACE), asyncio.Event()
    tasks = await started(*(bare.stay(bare.caller(tenant), leave) for tenant in "abc"))
    assert (bare.started, bare.gate.num_waiting) == ([("a", 0)], 2)
    leave.set()
    await asyncio.gather(*tasks)


async def test_load_is_shed_from_the_first_level_to_the_last_and_back() -> None:
    bare, leave = (
        Bare(ServerConfig(max_in_engine=1, shed_after_s=(1, 2, 4, 8), limits=LimitTerms(shed_hold_s=3))),
        asyncio.Event(),
    )
    later = asyncio.Event()
    tasks = await started(bare.stay(bare.caller(), leave), bare.stay(bare.caller(), later))
    tasks += await started(bare.stay(bare.caller(tier="batch"), later))
    seen = []
    for _ in range(9):
        await bare.gate.tick()
        seen.append(bare.gate.overload.level)
        bare.clock.now += 1
    assert seen == [0, 1, 2, 2, 3, 3, 3, 3, 4]
    assert [(plan.num_speculative_tokens, plan.reason) for plan in bare.engine.plans] == [
        (6, "overload_shallow"),
        (0, "overload_plain"),
        (0, "overload_batch_waits"),
        (0, "overload_low_refused"),
    ]
    assert [plan.version for plan in bare.engine.plans] == [6, 7, 8, 9]
    assert bare.sample("shed_level") == 4
    assert bare.sample("shed_changes_total", level="low_refused", direction="up") == 1
    assert bare.sample("admission_queued_requests", tier="batch") == 1
    for tier in ("economy", "batch"):
        with pytest.raises(Exception, match="refused for now") as caught:
            async with bare.inside(bare.caller(tier=tier)):
                pass
        assert caught.value.status == 503  # type: ignore[attr-defined]
        assert "retry-after" in caught.value.headers  # type: ignore[attr-defined]
    assert bare.sample("admission_refused_total", reason="shed") == 2

    leave.set()  # the standard request runs, batch is held
    await tasks[0]
    await bare.gate.tick()
    assert (bare.gate.num_waiting, bare.gate.overload.level) == (1, 4)
    later.set()
    await tasks[1]
    await bare.gate.tick()
    assert bare.gate.num_waiting == 1, "batch waits although there is room"
    levels = []
    for _ in range(14):
        bare.clock.now += 1
        await bare.gate.tick()
        levels.append(bare.gate.overload.level)
        await asyncio.sleep(0)
    assert levels == [4, 4, 3, 3, 3, 2, 2, 2, 1, 1, 1, 0, 0, 0]
    await tasks[2]
    assert bare.engine.plans[-1] == SpecPlan(version=13)
    assert bare.sample("shed_level") == 0


async def test_waiting_in_the_engine_is_load_too() -> None:
    """A prompt that no pass has begun counts from its arrival here, unless it is batch work."""
    bare, leave = Bare(ServerConfig(shed_after_s=(1, 2, 4, 8), limits=LimitTerms(shed_hold_s=3))), asyncio.Event()
    await bare.set_places(16)
    tasks = await started(bare.stay(bare.caller("a"), leave), bare.stay(bare.caller("c", "batch"), leave, name="b"))
    bare.clock.now += 5
    await bare.gate.tick()
    assert (bare.gate.demand, bare.gate.overload.level) == (Demand(0.0, 0), 0)
    bare.engine.reported = replace(bare.engine.reported, not_begun=("r", "b", "of the background"))
    await bare.gate.tick()
    assert bare.gate.demand == Demand(5.0, 0)
    assert bare.gate.overload.holds("a", "batch"), "the third level of its tenant"
    assert bare.sample("admission_queue_age_seconds") == 5.0
    bare.engine.reported = replace(bare.engine.reported, not_begun=("b",))
    assert bare.gate.demand == Demand(0.0, 0)
    leave.set()
    await asyncio.gather(*tasks)
    assert not bare.gate._admitted


async def test_a_backlog_sheds_the_work_of_the_tenant_that_has_it() -> None:
    config = ServerConfig(max_in_engine=2, shed_after_s=(1, 2, 4, 8), limits=LimitTerms(shed_hold_s=3))
    bare, leave = Bare(config), asyncio.Event()
    tasks = await started(*(bare.stay(bare.caller("a"), leave) for _ in range(3)))
    bare.clock.now += 8
    await bare.gate.tick()
    assert bare.engine.plans[-1].reason == "overload_low_refused", "no other tenant is there"
    with pytest.raises(Refused):
        bare.gate.check_open(bare.caller("a", "economy"))
    tasks += await started(*(bare.stay(bare.caller("b", tier), leave) for tier in ("economy", "batch", "standard")))
    await bare.gate.tick()
    assert bare.engine.plans[-1].reason == "default"
    assert (bare.gate.overload.holds("a", "batch"), bare.gate.overload.holds("b", "batch")) == (True, False)
    bare.clock.now += 8  # the second tenant waits as long
    await bare.gate.tick()
    assert bare.engine.plans[-1].reason == "overload_low_refused"
    with pytest.raises(Refused):
        bare.gate.check_open(bare.caller("c", "economy"))
    leave.set()
    for _ in range(20):
        bare.clock.now += 1
        await bare.gate.tick()
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    assert (bare.gate.overload.level, bare.gate.overload.holds("a", "batch")) == (0, False)


async def test_waiting_batch_work_does_not_count_as_overload() -> None:
    bare, leave = Bare(ServerConfig(max_in_engine=1, shed_after_s=(1, 2, 4, 8))), asyncio.Event()
    tasks = await started(*(bare.stay(bare.caller("b", "batch"), leave) for _ in range(3)))
    bare.clock.now += 100
    await bare.gate.tick()
    assert bare.gate.overload.level == 0
    leave.set()
    await asyncio.gather(*tasks)


async def test_waiting_batch_work_locks_no_request_out() -> None:
    config = ServerConfig(
        max_in_engine=1, shed_after_s=(1, 2, 4, 800), limits=LimitTerms(max_queued=4, max_queued_per_tenant=2)
    )
    bare, leave, now = Bare(config), asyncio.Event(), asyncio.Event()
    tasks = await started(bare.stay(bare.caller(), now))
    tasks += await started(*(bare.stay(bare.caller(tenant, "batch"), leave) for tenant in "tu"))
    for tenant, reason in (("t", "server_full"), ("v", "server_full")):  # half of the queue is full
        with pytest.raises(Refused) as caught:
            await bare.stay(bare.caller(tenant, "batch"), leave)
        assert caught.value.reason == reason
    tasks += await started(*(bare.stay(bare.caller(tenant, "premium"), now) for tenant in "ttuu"))
    assert bare.gate.num_waiting == 6
    for _ in range(6):
        bare.clock.now += 1
        await bare.gate.tick()
    assert bare.gate.overload.level == 3
    now.set()
    async with asyncio.timeout(LIMIT_S):
        await asyncio.gather(tasks[0], *tasks[3:])
    assert bare.gate.num_waiting == 2, "batch is held although there is room"
    with pytest.raises(Refused):
        await bare.stay(bare.caller("v", "batch"), leave)
    await bare.stay(bare.caller("t", "premium"), now)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_waiting_requests_end_with_an_error_when_the_server_ends() -> None:
    bare, leave = Bare(ONE_PLACE), asyncio.Event()
    [running, waiting] = await started(bare.stay(bare.caller(), leave), bare.stay(bare.caller(), leave))
    bare.gate.end_waiting()
    with pytest.raises(RequestAborted):
        await waiting
    leave.set()
    await running
    async with bare.inside(bare.caller()):
        assert bare.gate._taken == 1
    assert bare.gate._taken == 0


async def test_a_place_granted_to_one_that_just_left_goes_on_to_the_next() -> None:
    bare, leave = Bare(ONE_PLACE), asyncio.Event()
    first, second = asyncio.Event(), asyncio.Event()
    tasks = await started(bare.stay(bare.caller(), first), bare.stay(bare.caller(), second))
    tasks += await started(bare.stay(bare.caller(), leave))
    first.set()
    await asyncio.sleep(0)  # the first is leaving
    await asyncio.sleep(0)
    tasks[1].cancel()
    leave.set()
    second.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert (bare.gate._taken, bare.gate.num_inside, bare.gate.num_waiting) == (0, 0, 0)


async def test_background_work_gives_its_places_to_all_others() -> None:
    bare, leave, now = Bare(ServerConfig()), asyncio.Event(), asyncio.Event()
    await bare.set_places(3)
    assert bare.gate.background_room(0) == 2, "one place stays free for replays"
    lines = await started(*(bare.stay(bare.caller("a", "background"), leave) for _ in range(4)))
    assert bare.started == [("a", BACKGROUND)] * 3
    assert bare.gate.background_room(0) == 0
    tasks = await started(*(bare.stay(bare.caller("a"), now) for _ in range(4)))
    assert bare.started[3:] == [("a", 1)] * 3, "as many as there are places, before a line that came first"
    assert bare.gate.num_waiting == 2
    now.set()
    await asyncio.gather(*tasks)
    leave.set()
    await asyncio.gather(*lines)
    assert (bare.gate._taken, bare.gate._taken_background) == (0, 0)


async def test_background_work_leaves_half_of_configured_places_free() -> None:
    bare, leave = Bare(ServerConfig(max_in_engine=6)), asyncio.Event()
    tasks = await started(*(bare.stay(bare.caller("a", "background"), leave) for _ in range(2)))
    assert bare.gate.background_room(0) == 1
    tasks += await started(bare.stay(bare.caller("a", "background"), leave))
    assert bare.gate.background_room(0) == 0
    tasks += await started(*(bare.stay(bare.caller("b"), leave) for _ in range(4)))
    assert bare.gate.num_waiting == 1, "configured places are never exceeded"
    leave.set()
    await asyncio.gather(*tasks)


async def test_background_work_has_the_time_of_its_batch() -> None:
    bare = Bare(ServerConfig(request_timeout_s=5))
    async with bare.inside(bare.caller("a", "background")) as line, bare.inside(bare.caller("a")) as other:
        assert (line.deadline_s, other.deadline_s) == (None, 5)
