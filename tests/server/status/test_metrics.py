"""GET /metrics."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace

import httpx2

from prolepsis import __version__
from prolepsis.core.config import ServerConfig
from prolepsis.core.telemetry.metrics import Metrics
from prolepsis.server.status.metrics import MetricsFeature
from tests.clock import Clock
from tests.core.telemetry.test_requests import ended
from tests.server.fakes import FakeEngine
from tests.world.site import Site

Connect = Callable[[FakeEngine], httpx2.AsyncClient]


async def test_metrics_show_load_and_routes(client: Connect) -> None:
    http = client(FakeEngine())
    await http.get("/v1/models")
    await http.get("/made/up/by/a/client")
    text = (await http.get("/metrics")).text
    assert "prolepsis_num_requests_waiting 2.0" in text
    assert "prolepsis_kv_cache_usage_perc 0.25" in text
    assert 'prolepsis_http_requests_total{route="/v1/models",status="200"} 1.0' in text
    assert 'prolepsis_http_requests_total{route="unknown",status="404"} 1.0' in text
    assert "made/up" not in text
    assert "process_resident_memory_bytes" in text


async def test_metrics_show_whether_the_engine_takes_steps(client: Connect) -> None:
    engine = FakeEngine()
    http = client(engine)
    assert "prolepsis_engine_ready 1.0" in (await http.get("/metrics")).text
    engine.reported = replace(engine.reported, ready=False, detail="a step has been running for 21.0 s")
    assert "prolepsis_engine_ready 0.0" in (await http.get("/metrics")).text


async def test_an_answer_is_counted_with_its_latencies(client: Connect) -> None:
    http = client(FakeEngine())
    body = {"model": "tiny", "prompt": "x", "max_tokens": 4, "stream": True}
    assert (await http.post("/v1/completions", json=body)).status_code == 200
    text = (await http.get("/metrics")).text
    by = 'route="/v1/completions",tier="standard"'
    assert f'prolepsis_requests_total{{outcome="finished",{by}}} 1.0' in text
    assert f'prolepsis_e2e_request_latency_seconds_count{{mode="on",outcome="finished",{by}}} 1.0' in text
    assert 'prolepsis_request_stream_time_seconds_count{tier="standard"} 1.0' in text


async def test_build_info_says_what_serves_now() -> None:
    engine = FakeEngine()
    async with Site(engine, ServerConfig(region="eu-1")).http as http:
        engine.info = replace(engine.info, draft_head="head@7")  # swapped while serving
        text = (await http.get("/metrics")).text
    labels = 'draft_head="head@7",exactness="strict",forward="fake",model="tiny",policy="none",region="eu-1"'
    assert f'prolepsis_build_info{{{labels},version="{__version__}"}} 1.0' in text


async def test_vllm_names_are_there_where_they_are_asked_for() -> None:
    config = ServerConfig(metrics_vllm_names=True, served_model_names=("chat",))
    async with Site(FakeEngine(), config).http as http:
        text = (await http.get("/metrics")).text
    assert 'vllm:num_requests_waiting{engine="0",model_name="chat"} 2.0' in text


async def test_a_cold_start_is_timed_and_its_requests_are_counted() -> None:
    metrics, engine, clock = Metrics(), FakeEngine(), Clock()
    feature = MetricsFeature(metrics, ServerConfig(), engine, clock=clock)
    engine.reported = replace(engine.reported, ready=False)
    await feature.tick()
    feature.on_request_end(ended())
    clock.now += 7.0
    engine.reported = replace(engine.reported, ready=True)
    for _ in range(2):
        await feature.tick()
        clock.now += 7.0
    feature.on_request_end(ended())
    metrics.startup.loaded(30.0, [12.0, 8.0])
    value = metrics.registry.get_sample_value
    seconds = [value("prolepsis_startup_seconds", {"stage": stage}) for stage in ("load", "compile", "prepare")]
    assert seconds == [30.0, 20.0, 7.0]
    assert value("prolepsis_compilations_total") == 2
    assert value("prolepsis_cold_requests_total") == 1


async def test_a_scrape_does_not_wait_for_a_store_that_hangs(client: Connect) -> None:
    http, loop, hangs = client(FakeEngine()), asyncio.get_running_loop(), threading.Event()
    hanging = [loop.run_in_executor(None, hangs.wait) for _ in range(64)]
    try:
        assert (await http.get("/metrics")).status_code == 200
        assert not any(one.done() for one in hanging)
    finally:
        hangs.set()
        await asyncio.gather(*hanging)
