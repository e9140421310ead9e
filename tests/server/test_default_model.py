"""Tools and structured output over HTTP with the default model: every stream equals its twin, and plain decoding."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import httpx2
import jsonschema
import pytest

from prolepsis.core.config import EngineConfig, ServerConfig
from prolepsis.core.telemetry.metrics import Metrics
from prolepsis.engine.build import assemble
from prolepsis.engine.models.load import LoadedModel
from prolepsis.engine.thread import ThreadEngineClient
from tests.default_model import CONFIG
from tests.server.application import build

pytestmark = pytest.mark.real_model
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA, "strict": True}}
ASKED: dict[str, Any] = {
    "model": "smollm2-135m-instruct",
    "messages": [{"role": "user", "content": "What will the weather in Ulm be in the next three days?"}],
    "max_tokens": 120,
    "seed": 3,
}
FORMS: dict[str, dict[str, Any]] = {
    "required": {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False},
    "auto": {"tools": [TOOL], "max_tokens": 40},
    "schema": {
        "response_format": {"type": "json_schema", "json_schema": {"name": "plan", "schema": SCHEMA, "strict": True}}
    },
    "choice": {"structured_outputs": {"choice": ["sun", "rain"]}},
    "prefill": {
        "messages": [*ASKED["messages"], {"role": "assistant", "content": "In Ulm it will be"}],
        "continue_final_message": True,
        "max_tokens": 40,
    },
}
PLAIN = {"speculation": {"mode": "off"}}
STREAM = {"speculation": {"mode": "always"}, "stream": True}


def message_of(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """Put a stream together as clients do."""
    content, finish = "", None
    calls: list[list[str]] = []
    for chunk in chunks:
        choice = chunk["choices"][0]
        content += choice["delta"].get("content", "")
        finish = choice["finish_reason"] or finish
        for call in choice["delta"].get("tool_calls", []):
            if call["index"] == len(calls):
                calls.append([call["function"]["name"], ""])
            calls[-1][1] += call["function"]["arguments"]
    return {"content": content or None, "calls": calls, "finish": finish}


async def ask(http: httpx2.AsyncClient, body: Mapping[str, Any]) -> dict[str, Any]:
    response = await http.post("/v1/chat/completions", json=body, timeout=60)
    assert response.status_code == 200, response.text
    if body.get("stream"):
        lines = [line for line in response.text.splitlines() if line.startswith("data: {")]
        return message_of([json.loads(line.removeprefix("data: ")) for line in lines])
    choice = response.json()["choices"][0]
    calls = [
        [call["function"][name] for name in ("name", "arguments")] for call in choice["message"].get("tool_calls", [])
    ]
    return {"content": choice["message"]["content"], "calls": calls, "finish": choice["finish_reason"]}


async def answers(
    loaded: LoadedModel, engine: EngineConfig, server: ServerConfig, forms: Mapping[str, dict[str, Any]]
) -> dict[str, list[dict[str, Any]]]:
    """Return the answers to each form without drafts, with them, and as a stream with all of them."""
    client = ThreadEngineClient(assemble(engine, loaded))
    app = build(server, client, loaded.tokenizer, Metrics())
    try:
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://localhost") as http:
            bodies = [{**form, **how} for form in forms.values() for how in (PLAIN, {}, STREAM)]
            replies = await asyncio.gather(*(ask(http, body) for body in bodies))
            return {name: replies[3 * i : 3 * i + 3] for i, name in enumerate(forms)}
    finally:
        await client.close()


def test_tools_and_forms_over_http(loaded: LoadedModel, strict: bool) -> None:
    forms = {name: {**ASKED, **form} for name, form in FORMS.items()}
    found = asyncio.run(answers(loaded, CONFIG, ServerConfig(), forms))
    for name, (plain, fast, stream) in found.items():
        assert stream == fast, name
        if strict:
            assert fast == plain, name
    required = found["required"][1]
    assert required["finish"] == "tool_calls"
    assert [name for name, _ in required["calls"]] == ["weather"]
    jsonschema.validate(json.loads(required["calls"][0][1]), SCHEMA)
    jsonschema.validate(json.loads(found["schema"][1]["content"]), SCHEMA)
    assert found["choice"][1]["content"] in ("sun", "rain")
