"""What a request does to its own logits and text counts where tenants share the engine."""

import asyncio
from dataclasses import replace

import httpx2
import pytest
from msgspec import structs

from prolepsis.core.config import ServerConfig
from prolepsis.core.events import Proposed, Tokens
from prolepsis.core.requests import GenerateRequest, GrammarSpec, SamplingParams
from prolepsis.core.stats import RequestStats
from prolepsis.server.admission.fair_queue import FairQueue, Waiting
from prolepsis.server.admission.group import Progress, ResponseCache, cache_key, processing_per_token, replayed
from tests.clock import Clock
from tests.server.admission.conftest import KeyedApp, bearer
from tests.server.fakes import FakeEngine

BIASED = SamplingParams(max_tokens=100, logit_bias=tuple((i, 1.0) for i in range(4096)))
SHOWN = SamplingParams(max_tokens=100, logprobs=20)
PLAIN = SamplingParams(max_tokens=100, stop=("x",))


@pytest.mark.parametrize(
    ("params", "grammar", "adds"),
    [
        (PLAIN, None, False),
        (SamplingParams(logprobs=0), None, True),
        (SamplingParams(repetition_penalty=1.1), None, True),
        (SamplingParams(), GrammarSpec("regex", "a"), True),
        (BIASED, None, True),
    ],
)
def test_own_processing_adds_to_a_token(params: SamplingParams, grammar: GrammarSpec | None, adds: bool) -> None:
    assert (processing_per_token(GenerateRequest("r", (1,), params, grammar=grammar)) > 0) == adds


def test_more_entries_cost_more() -> None:
    costs = [processing_per_token(GenerateRequest("r", (1,), SamplingParams(logprobs=k))) for k in (0, 1, 20)]
    assert costs == sorted(set(costs))


def test_a_tenant_pays_in_the_queue_for_the_processing_it_asks_for() -> None:
    queue = FairQueue()
    for tenant, params in (("plain", PLAIN), ("costly", SHOWN)):
        for _ in range(100):
            load = Progress(GenerateRequest("r", (1,), params)).load
            queue.push(Waiting(tenant, "standard", 0, load, 1, 0.0))
    served = []
    for _ in range(100):
        waiting = queue.peek()
        assert waiting is not None
        queue.start(waiting)
        served.append(waiting.tenant)
    assert served.count("plain") > 1.2 * served.count("costly")


def test_the_refund_counts_the_processing_of_emitted_tokens() -> None:
    progress = Progress(GenerateRequest("r", (1, 2), SHOWN, n=3))
    per_token = processing_per_token(progress.request)
    assert progress.load == progress.cost + 300 * per_token
    assert progress.load_used == 0
    progress.see(Tokens("r", 0, (1, 2, 3, 4), position=0))
    assert progress.load_used == progress.num_used + 4 * per_token
    assert progress.num_used == 6, "limits of rate count tokens only"


CACHING = ServerConfig(response_cache_bytes=100_000)
BODY = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "temperature": 0}


async def ask(http: httpx2.AsyncClient, key: str = "", **changes: object) -> httpx2.Response:
    headers = bearer(key) if key else {}
    response = await http.post("/v1/chat/completions", json=BODY | changes, headers=headers)
    assert response.status_code == 200
    return response


async def test_off_by_default(keyed_app: KeyedApp) -> None:
    engine = FakeEngine()
    async with keyed_app.open(engine) as http:
        for _ in range(2):
            assert "x-response-cache" not in (await ask(http)).headers
    assert len(engine.requests) == 2


async def test_a_hit_says_so_and_is_the_same_answer(keyed_app: KeyedApp) -> None:
    engine = FakeEngine()
    async with keyed_app.open(engine, CACHING) as http:
        computed, stored = await ask(http), await ask(http)
        streamed = await ask(http, stream=True, stream_options={"include_usage": True})
    assert len(engine.requests) == 1
    marks = [response.headers["x-response-cache"] for response in (computed, stored, streamed)]
    assert marks == ["miss", "hit", "hit"]
    assert stored.json()["choices"] == computed.json()["choices"]
    assert stored.json()["id"] != computed.json()["id"]
    usage = stored.json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"]
    assert usage["completion_tokens"] == computed.json()["usage"]["completion_tokens"]
    assert stored.headers["x-spec-effective"].startswith("mode=off;reason=response_cache")
    assert "Grüße, world!" in stored.text
    assert streamed.text.endswith("data: [DONE]\n\n")
    value = keyed_app.metrics.registry.get_sample_value("prolepsis_response_cache_requests_total", {"result": "hit"})
    assert value == 2


@pytest.mark.parametrize("asked", [{"mode": "always"}, {"mode": "off"}, {"max_depth": 1}, {"proposer": "suffix"}])
async def test_who_says_how_to_draft_gets_no_stored_answer(keyed_app: KeyedApp, asked: dict[str, object]) -> None:
    engine = FakeEngine()
    async with keyed_app.open(engine, CACHING) as http:
        await ask(http)
        forced = await ask(http, speculation=asked)
        assert "x-response-cache" not in forced.headers
        assert (await ask(http, speculation={"metrics": True})).headers["x-response-cache"] == "hit"
    assert len(engine.requests) == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"temperature": 1},
        {"temperature": 0, "max_tokens": 3},
        {"messages": [{"role": "user", "content": "Ho"}]},
        {"n": 2},
        {"stop": ["w"]},
        {"logprobs": True},
        {"frequency_penalty": 1.0},
    ],
)
async def test_another_request_is_not_a_hit(keyed_app: KeyedApp, changes: dict[str, object]) -> None:
    engine = FakeEngine()
    async with keyed_app.open(engine, CACHING) as http:
        await ask(http)
        await ask(http, "", **changes)
    assert len(engine.requests) == 2


async def test_the_callers_seed_makes_an_answer_deterministic(keyed_app: KeyedApp) -> None:
    engine = FakeEngine()
    async with keyed_app.open(engine, CACHING) as http:
        for seed, mark in ((1, "miss"), (1, "hit"), (2, "miss")):
            assert (await ask(http, temperature=1, seed=seed)).headers["x-response-cache"] == mark
        assert "x-response-cache" not in (await ask(http, temperature=1)).headers


async def test_tenants_and_salts_are_apart(keyed_app: KeyedApp) -> None:
    ann, ann_too, bob = keyed_app.key(tenant="ann"), keyed_app.key(tenant="ann"), keyed_app.key(tenant="bob")
    engine = FakeEngine()
    async with keyed_app.open(engine, CACHING) as http:
        marks = [(await ask(http, key)).headers["x-response-cache"] for key in (ann, ann_too, bob)]
        assert marks == ["miss", "hit", "miss"]
        assert (await ask(http, ann, cache_salt="pepper")).headers["x-response-cache"] == "miss"
        assert (await ask(http, ann, cache_salt="pepper")).headers["x-response-cache"] == "hit"


async def test_a_hit_takes_no_place_and_no_tokens(keyed_app: KeyedApp) -> None:
    key = keyed_app.key()
    config = ServerConfig(response_cache_bytes=100_000, tokens_per_minute={"key": 10_000})
    async with keyed_app.open(FakeEngine(), config) as http:
        await ask(http, key)
        first = int((await ask(http, key)).headers["x-ratelimit-remaining-tokens"])
        assert int((await ask(http, key)).headers["x-ratelimit-remaining-tokens"]) >= first


async def test_an_answer_that_failed_is_not_stored(keyed_app: KeyedApp) -> None:
    engine = FakeEngine(hold_after=1)
    async with keyed_app.open(engine, CACHING) as http:
        asking = asyncio.create_task(ask(http))
        await engine.held.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        engine.hold_after = None
        assert (await ask(http)).headers["x-response-cache"] == "miss"


def tokens(number: int) -> list[Tokens]:
    return [Tokens("r", 0, (1,) * number, position=0)]


def test_bytes_are_bounded_and_the_oldest_use_goes_first() -> None:
    cache = ResponseCache(5000, 60.0, Clock())
    for name in (b"a", b"b", b"c"):
        cache.put(name, tokens(5), RequestStats())
    assert cache.get(b"a") is not None
    cache.put(b"d", tokens(5), RequestStats())
    assert [cache.get(name) is not None for name in (b"a", b"b", b"c", b"d")] == [True, False, True, True]
    cache.put(b"big", tokens(1000), RequestStats())
    assert cache.get(b"big") is None
    cache.put(b"a", tokens(6), RequestStats())
    assert 0 < cache.num_bytes <= 5000


def test_a_stored_answer_says_nothing_of_the_drafts_of_its_first_run() -> None:
    cache = ResponseCache(5000, 60.0, Clock())
    drafted = structs.replace(
        tokens(3)[0], proposed=Proposed((1, 1), (-1, 0), "suffix"), accepted_by=("suffix", "suffix")
    )
    cache.put(b"a", [drafted], RequestStats())
    answer = cache.get(b"a")
    assert answer is not None
    told = replayed(answer, "second")[0]
    assert isinstance(told, Tokens)
    assert (told.token_ids, told.proposed, told.accepted_by) == ((1, 1, 1), None, ())


def test_answers_grow_old() -> None:
    clock = Clock()
    cache = ResponseCache(5000, 60.0, clock)
    cache.put(b"a", tokens(5), RequestStats())
    clock.now += 59
    assert cache.get(b"a") is not None
    clock.now += 1
    assert cache.get(b"a") is None
    assert cache.num_bytes == 0


def test_keys_name_all_that_matters() -> None:
    request = GenerateRequest("r", (1, 2), SamplingParams(temperature=0.0, seed=1), cache_salt="s")
    same = replace(request, request_id="x", priority=3, deadline_s=1.0, params=replace(request.params, seed=2))
    assert cache_key(request, "t", "f") == cache_key(same, "t", "f")
    others = [replace(request, cache_salt="z"), replace(request, prompt_token_ids=(12,)), replace(request, n=2)]
    keys = {cache_key(one, "t", "f") for one in (request, *others)}
    keys |= {cache_key(request, "u", "f"), cache_key(request, "t", "g")}
    assert len(keys) == 6
