"""A response in the background, its stream in two parts, and the foreground: one answer, speculation off and on."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from prometheus_client import CollectorRegistry

from prolepsis.control.store.store import open_store
from prolepsis.control.web.feature import running
from prolepsis.core.config import EngineConfig, ServerConfig
from prolepsis.core.telemetry.metrics import Metrics
from prolepsis.engine.build import assemble
from prolepsis.engine.models.load import load_model
from prolepsis.engine.thread import ThreadEngineClient
from tests.server.application import build

PATH = "/v1/responses"
ASKED = {"model": "tiny", "input": "hello world hello world hello", "max_output_tokens": 40, "seed": 11}
Json = dict[str, Any]


def text_of(response: Json) -> str:
    assert response["status"] in ("completed", "incomplete"), response
    return "".join(part["text"] for item in response["output"] for part in item["content"])


async def events_of(http: httpx2.AsyncClient, method: str, path: str, most: int = 10**6, **more: Any) -> list[Json]:
    """Return the first events of a stream, which is left behind them."""
    found: list[Json] = []
    async with http.stream(method, path, **more) as reply:
        async for line in reply.aiter_lines():
            if line.startswith("data: "):
                found.append(json.loads(line.removeprefix("data: ")))
            if len(found) == most:
                break
    return found


async def polled(http: httpx2.AsyncClient, body: Json, headers: dict[str, str]) -> Json:
    begun: Json = (await http.post(PATH, json={**body, "background": True}, headers=headers)).json()
    while begun["status"] in ("queued", "in_progress"):
        await asyncio.sleep(0.02)
        begun = (await http.get(f"{PATH}/{begun['id']}")).json()
    return begun


async def answers(http: httpx2.AsyncClient, body: Json, mode: str) -> list[str]:
    headers = {"x-spec-mode": mode}
    whole = (await http.post(PATH, json=body, headers=headers)).json()
    streamed = {**body, "background": True, "stream": True}
    all_events = await events_of(http, "POST", PATH, json=streamed, headers=headers)
    name = all_events[0]["response"]["id"]
    first = await events_of(http, "GET", f"{PATH}/{name}?stream=true", 5)
    rest = await events_of(http, "GET", f"{PATH}/{name}?stream=true&starting_after=4")
    assert [*first, *rest] == all_events
    deltas = "".join(event["delta"] for event in [*first, *rest] if event["type"].endswith("text.delta"))
    stored = (await http.get(f"{PATH}/{name}")).json()
    assert rest[-1]["response"] == stored
    return [text_of(whole), text_of(await polled(http, body, headers)), deltas, text_of(stored)]


@pytest.mark.parametrize("temperature", [0, 0.8])
def test_the_background_gives_the_foregrounds_answer(
    tiny_family: Callable[[str, str], Path], sqlite: str, temperature: float
) -> None:
    async def work() -> list[list[str]]:
        config = EngineConfig(model=str(tiny_family("byte-level", "hermes")), strict="off", kv_memory="128MiB")
        loaded = load_model(config)
        client, store = ThreadEngineClient(assemble(config, loaded)), open_store(sqlite, CollectorRegistry())
        server = ServerConfig(served_model_names=("tiny",), store=sqlite, response_retention_days=1)
        app = build(server, client, loaded.tokenizer, Metrics(), store=store)
        try:
            async with (
                running(app.state.features),
                httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://localhost") as http,
            ):
                asked = {**ASKED, "temperature": temperature}
                return [await answers(http, asked, mode) for mode in ("off", "always")]
        finally:
            await client.close()
            store.close()

    off, on = asyncio.run(work())
    assert off == on == off[:1] * 4
    assert off[0], "an answer that is empty shows nothing"
