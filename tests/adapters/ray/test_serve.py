"""Replicas on a real Ray: a replica is killed while streams run, and no output changes."""

import asyncio
import json
import os
import random
import signal
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from pathlib import Path

import httpx2
import pytest
import structlog

from prolepsis.adapters.ray.autoscaling import Scaling
from prolepsis.adapters.ray.start import start_replicas
from prolepsis.core.engine_client import EngineClient
from prolepsis.core.errors import ModelLoadError
from prolepsis.core.events import Event, Finished
from prolepsis.core.extras import RAY
from prolepsis.core.requests import GenerateRequest, GrammarSpec, SamplingParams
from prolepsis.core.telemetry.logs import hide_private
from prolepsis.core.telemetry.metrics import Metrics
from prolepsis.engine.start import start_engine
from prolepsis.remote.messages import LogSettings
from prolepsis.server.run import StartedEngine
from tests.adapters.ray.processes import replica_processes
from tests.commands import free_port
from tests.fakes import outputs
from tests.training.targets import config_of, save_target

pytestmark = pytest.mark.filterwarnings("default")  # Ray's own


@pytest.fixture(scope="module", autouse=True)
def ray_is_here() -> None:
    """To look for it imports it, which takes seconds: only where its tests run."""
    if not RAY.is_installed:
        pytest.skip(f"Ray Serve is not installed: {RAY.install}")


CHOICE = GrammarSpec("regex", "(yes|no), [a-z]{40,60}!")


def sources(name: str) -> list[GenerateRequest]:
    """Return greedy, sampled, constrained and penalised requests, whose answers are long enough to be interrupted."""
    long = partial(SamplingParams, max_tokens=300, ignore_eos=True)
    return [
        GenerateRequest(f"{name} greedy", (5, 6, 7), long(temperature=0.0)),
        GenerateRequest(f"{name} sampled", tuple(range(3, 80)), long(seed=11), n=2),
        GenerateRequest(f"{name} regex", (9,), SamplingParams(seed=12, max_tokens=300), grammar=CHOICE),
        GenerateRequest(f"{name} penalties", (8, 9), long(seed=13, frequency_penalty=0.7)),
    ]


async def collect(client: EngineClient, source: GenerateRequest, begun: asyncio.Semaphore) -> list[Event]:
    events: list[Event] = []
    async for event in client.generate(source):
        if not events:
            begun.release()
        events.append(event)
    return events


async def answers(client: EngineClient, name: str, kill: int | None = None) -> list[list[list[int]]]:
    """Return the tokens of each sample of each request; once all have begun, process `kill` is killed."""
    begun, asked = asyncio.Semaphore(0), sources(name)
    work = [asyncio.create_task(collect(client, source, begun)) for source in asked]
    for _ in asked:
        await begun.acquire()
    if kill is not None:
        os.kill(kill, signal.SIGKILL)
    found = await asyncio.gather(*work)
    assert all(isinstance(events[-1], Finished) for events in found)
    return [list(outputs(events).values()) for events in found]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_target(tmp_path_factory.mktemp("target"))


@pytest.fixture
async def replicas(folder: Path) -> AsyncIterator[StartedEngine]:
    loop = asyncio.get_running_loop()
    started = await loop.run_in_executor(None, start_replicas, config_of(folder), Scaling(least=2, most=2), Metrics())
    yield started
    await started.client.close()


async def test_a_killed_replica_changes_no_output(folder: Path, replicas: StartedEngine) -> None:
    alone = start_engine(config_of(folder))
    expected = await answers(alone.client, "alone")
    await alone.client.close()
    assert await answers(replicas.client, "undisturbed") == expected
    assert replicas.tokenizer.encode("a b") == alone.tokenizer.encode("a b")
    killed = random.Random(0).choice(replica_processes())
    assert await answers(replicas.client, "disturbed", killed) == expected
    assert await answers(replicas.client, "after") == expected


def test_the_logs_of_a_replica_hide_prompts_from_its_first_line(tmp_path: Path) -> None:
    from prolepsis.adapters.ray.serve import ServedReplica

    (tmp_path / "config.json").write_text("{}")
    try:
        with pytest.raises(ModelLoadError):
            ServedReplica(config_of(tmp_path), LogSettings("warning", as_json=True))
        processors = structlog.get_config()["processors"]
    finally:
        structlog.reset_defaults()
    assert hide_private in processors
    assert any(isinstance(one, structlog.processors.JSONRenderer) for one in processors)


async def test_the_number_of_replicas_follows_the_load(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S", "0.5")
    scaling = Scaling(least=1, most=2, samples_per_replica=4, grow_after_s=0.5, shrink_after_s=1.0)
    loop, config = asyncio.get_running_loop(), config_of(folder)
    started = await loop.run_in_executor(None, start_replicas, config, scaling, Metrics())
    client, begun = started.client, asyncio.Semaphore(0)

    async def until_there_are(number: int) -> None:
        async with asyncio.timeout(120):
            while client.health().max_running != number * config.max_requests:  # noqa: ASYNC110  Ray's doing
                await asyncio.sleep(0.1)

    async def busy(worker: int) -> None:
        for i in count():
            for source in sources(f"{worker} {i}"):
                assert isinstance((await collect(client, source, begun))[-1], Finished)

    await until_there_are(1)
    work = [asyncio.create_task(busy(worker)) for worker in range(8)]
    await until_there_are(2)
    assert not any(task.done() for task in work)
    for task in work:
        task.cancel()
    last = asyncio.create_task(answers(client, "while it shrinks"))
    await until_there_are(1)
    await last
    await client.close()


@pytest.fixture
def client() -> Iterator[httpx2.Client]:
    """Ray, and a client of its proxy on a free port of this machine."""
    import ray
    from ray import serve

    port = free_port()
    ray.init(num_cpus=8, include_dashboard=False, configure_logging=False, _node_ip_address="127.0.0.1")
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=60.0) as client:
            yield client
    finally:
        serve.shutdown()
        ray.shutdown()


def test_front_ends_and_engines_of_two_models_are_one_application(
    folder: Path, tmp_path: Path, client: httpx2.Client
) -> None:
    from ray import serve

    from prolepsis.adapters.ray import app

    arguments: dict[str, object] = {
        "front_ends": 2,
        "engine": config_of(folder).model_dump(mode="json", exclude_defaults=True),
        "models": {
            "tiny": {"server": {"replicas": 2, "store": f"sqlite:///{tmp_path}/tiny.db"}},
            "short": {"engine": {"max_model_len": 100}, "server": {"store": f"sqlite:///{tmp_path}/short.db"}},
        },
    }
    serve.run(app(arguments), name="application")
    assert client.get("/health/ready").json()["ready"]
    reply = client.get("/health/ready", headers={"x-request-id": "abc-1"})
    assert reply.headers.get_list("x-request-id") == ["abc-1"], "Ray's proxy repeats it too"
    lengths = {model["id"]: model["max_model_len"] for model in client.get("/v1/models").json()["data"]}
    assert (lengths["short"], lengths["tiny"] > 100) == (100, True)

    def answer(model: str) -> str:
        body = {"model": model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 20, "seed": 3}
        reply = client.post("/v1/chat/completions", json=body).raise_for_status().json()
        content = reply["choices"][0]["message"]["content"]
        with client.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as stream:
            lines = [line.removeprefix("data: ") for line in stream.iter_lines() if line.startswith("data: {")]
        assert "".join(json.loads(line)["choices"][0]["delta"].get("content") or "" for line in lines) == content
        return str(content)

    assert client.post("/v1/completions", json={"model": "none", "prompt": "x"}).status_code == 404
    [whole] = {answer(model) for model in ("tiny", "short") for _ in range(4)}
    first = set(replica_processes())
    with ThreadPoolExecutor() as executor:
        replaced = executor.submit(serve.run, app({**arguments, "release": "next"}), name="application")
        while not replaced.done() or first & set(replica_processes()):
            assert answer("tiny") == whole
    assert answer("short") == whole
