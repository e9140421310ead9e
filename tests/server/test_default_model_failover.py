"""The engine of a server ends under sixteen streams, twice: every answer equals the undisturbed one, usage included."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import httpx2
import pytest

from prolepsis.core.config import ServerConfig
from prolepsis.core.figures import Figure, StepDone
from prolepsis.core.telemetry.metrics import Metrics
from prolepsis.engine.models.load import LoadedModel
from prolepsis.engine.start import EngineStart
from prolepsis.remote.engines import Engines
from prolepsis.remote.members import Member
from tests.default_model import CONFIG
from tests.server.application import build
from tests.server.test_default_model import ASKED, FORMS

pytestmark = [pytest.mark.real_model, pytest.mark.night]
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "sampled": {"logprobs": True, "top_logprobs": 2},
    "schema": FORMS["schema"],
    "tool": FORMS["required"],
    "two samples": {"n": 2, "max_tokens": 20},
    "penalties": {"frequency_penalty": 0.7, "presence_penalty": 0.3, "temperature": 0.7},
    "stops": {"stop": [". ", "the", "\n"], "min_tokens": 10},
    "choice": FORMS["choice"],
}
LOAD: dict[str, dict[str, Any]] = {
    f"{name} {seed}": {
        **ASKED,
        "max_tokens": 24,
        **kind,
        "seed": seed,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    for name, kind in KINDS.items()
    for seed in (1, 2)
}


class Fatal(Metrics):
    """Ends the engine's thread at certain steps."""

    def __init__(self, *steps: int) -> None:
        super().__init__()
        self._left = list(steps)
        self._num_steps = 0

    def observe(self, figure: Figure) -> None:
        super().observe(figure)
        self._num_steps += isinstance(figure, StepDone)
        if self._left and self._num_steps >= self._left[0]:
            self._left.pop(0)
            raise SystemExit("the thread ends")


async def stream(http: httpx2.AsyncClient, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a client makes of a stream: its choices, and the usage."""
    response = await http.post("/v1/chat/completions", json=body, timeout=120)
    assert response.status_code == 200, response.text
    lines = [line for line in response.text.splitlines() if line.startswith("data: {")]
    choices: dict[int, list[Any]] = {}
    usage = None
    for chunk in (json.loads(line.removeprefix("data: ")) for line in lines):
        assert "error" not in chunk, chunk
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            found = choices.setdefault(choice["index"], ["", "", [], None])
            found[0] += choice["delta"].get("content") or ""
            for call in choice["delta"].get("tool_calls", []):
                found[1] += call["function"]["arguments"]
            found[2] += [one["logprob"] for one in (choice.get("logprobs") or {}).get("content") or []]
            found[3] = choice["finish_reason"] or found[3]
    assert usage is not None
    return {"choices": choices, "usage": {name: usage[name] for name in ("prompt_tokens", "completion_tokens")}}


async def answers(loaded: LoadedModel, metrics: Metrics) -> dict[str, Any]:
    start = EngineStart(CONFIG, loaded, metrics)
    client = Engines([Member(start.first(), start.again)], metrics.registry)
    app = build(ServerConfig(max_in_engine=16, replay_sample=0.0, store="none"), client, loaded.tokenizer, metrics)
    try:
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://localhost") as http:
            found = dict(zip(LOAD, await asyncio.gather(*(stream(http, body) for body in LOAD.values())), strict=True))
            assert (await http.get("/health/ready")).status_code == 200
            return found
    finally:
        await client.close()


def value(metrics: Metrics, name: str, **labels: str) -> float:
    return metrics.registry.get_sample_value(f"prolepsis_{name}", labels) or 0.0


def test_sixteen_streams_go_on_in_an_engine_that_was_started_again(loaded: LoadedModel, strict: bool) -> None:
    if not strict:
        pytest.skip("the target's forward is not exact here")
    expected = asyncio.run(answers(loaded, Metrics()))
    metrics = Fatal(4, 14)
    assert asyncio.run(answers(loaded, metrics)) == expected
    assert value(metrics, "engine_restarts_total", result="started") == 2
    assert value(metrics, "continuations_total", reason="engine_dead", result="exact") >= 17
    assert value(metrics, "requests_total", route="/v1/chat/completions", tier="standard", outcome="finished") == 16
