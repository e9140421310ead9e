"""Each dialect gives the answer of a chat, with speculation off and on, whole and streamed."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from jiter import from_json

from prolepsis.core.config import EngineConfig, ServerConfig
from prolepsis.core.telemetry.metrics import Metrics
from prolepsis.engine.build import assemble
from prolepsis.engine.models.load import load_model
from prolepsis.engine.thread import ThreadEngineClient
from tests.server.application import build
from tests.server.dialects.anthropic.test_render import events_of, put_together
from tests.server.dialects.claude_code import first_turn, second_turn
from tests.server.dialects.llamacpp.test_render import events
from tests.server.dialects.ollama.test_render import lines, read

LENGTH, SEED = 48, 11
SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Köln", "Ulm"]}}, "required": ["city"]}
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello world hello world hello"}]
Answer = tuple[str, str, list[tuple[str, object]]]
"""Text, reasoning, and names and arguments of calls."""


def chat_body(*, tools: bool, temperature: float) -> dict[str, Any]:
    function = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
    called: dict[str, Any] = {"tools": [function], "tool_choice": "required", "parallel_tool_calls": False}
    body = {"messages": MESSAGES, "max_tokens": LENGTH, "temperature": temperature, "seed": SEED}
    return {**body, **(called if tools else {})}


def as_messages(chat: dict[str, Any]) -> dict[str, Any]:
    body = {name: chat[name] for name in ("max_tokens", "temperature", "seed")}
    body |= {"system": MESSAGES[0]["content"], "messages": MESSAGES[1:]}
    if "tools" in chat:
        body["tools"] = [{"name": "weather", "input_schema": SCHEMA}]
        body["tool_choice"] = {"type": "any", "disable_parallel_tool_use": True}
    return body


def as_ollama(chat: dict[str, Any]) -> dict[str, Any]:
    options = {"num_predict": LENGTH, "temperature": chat["temperature"], "seed": SEED}
    return {"messages": MESSAGES, "options": options}


class Asking:
    """Asks one server in one mode."""

    def __init__(self, http: httpx2.AsyncClient, mode: str) -> None:
        self._http = http
        self._headers = {"x-spec-mode": mode}

    async def post(self, path: str, body: dict[str, Any]) -> httpx2.Response:
        reply = await self._http.post(path, json={**body, "model": "tiny"}, headers=self._headers, timeout=300)
        assert reply.status_code == 200, reply.text[:300]
        return reply

    async def chat(self, body: dict[str, Any]) -> Answer:
        message = (await self.post("/v1/chat/completions", body)).json()["choices"][0]["message"]
        calls = [call["function"] for call in message.get("tool_calls", ())]
        called = [(call["name"], from_json(call["arguments"].encode(), partial_mode=True)) for call in calls]
        return message["content"] or "", message.get("reasoning_content", ""), called

    async def messages(self, body: dict[str, Any], *, stream: bool) -> Answer:
        reply = await self.post("/v1/messages", {**body, "stream": stream})
        content = (put_together(events_of(reply)) if stream else reply.json())["content"]
        texts, thoughts = (
            "".join(block[kind] for block in content if block["type"] == kind) for kind in ("text", "thinking")
        )
        return texts, thoughts, [(block["name"], block["input"]) for block in content if block["type"] == "tool_use"]

    async def ollama(self, body: dict[str, Any], *, stream: bool) -> Answer:
        reply = await self.post("/api/chat", {**body, "stream": stream})
        text, thought, _, _ = read(lines(reply))
        return text, thought, []


async def answers(http: httpx2.AsyncClient, chat: dict[str, Any]) -> list[Answer]:
    """Return the answers of all dialects in all modes; Ollama's API asks for no call."""
    found = []
    for mode in ("off", "always"):
        asking = Asking(http, mode)
        found.append(await asking.chat(chat))
        for stream in (False, True):
            found.append(await asking.messages(as_messages(chat), stream=stream))
            if "tools" not in chat:
                found.append(await asking.ollama(as_ollama(chat), stream=stream))
    return found


async def with_model(path: Path, work: Callable[[httpx2.AsyncClient], Any]) -> Any:
    config = EngineConfig(model=str(path), max_model_len=8192, strict="off", kv_memory="128MiB")
    loaded = load_model(config)
    client = ThreadEngineClient(assemble(config, loaded))
    app = build(ServerConfig(served_model_names=("tiny",)), client, loaded.tokenizer, Metrics())
    try:
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://localhost") as http:
            return await work(http)
    finally:
        await client.close()


@pytest.mark.parametrize("tools", [False, True])
def test_every_dialect_gives_the_answer_of_the_chat(tiny_family: Callable[[str, str], Path], tools: bool) -> None:
    async def work(http: httpx2.AsyncClient) -> list[list[Answer]]:
        return [await answers(http, chat_body(tools=tools, temperature=one)) for one in (0, 0.8)]

    for found in asyncio.run(with_model(tiny_family("byte-level", "hermes"), work)):
        assert all(one == found[0] for one in found), found
        assert found[0][2 if tools else 0], "an answer that is empty shows nothing"


def test_completions_of_llamacpp_are_those_of_openai(tiny_family: Callable[[str, str], Path]) -> None:
    async def work(http: httpx2.AsyncClient) -> list[str]:
        found = []
        shared = {"prompt": "hello world hello world hello", "temperature": 0.8, "seed": SEED}
        for mode in ("off", "always"):
            asking = Asking(http, mode)
            whole = (await asking.post("/v1/completions", {**shared, "max_tokens": LENGTH})).json()
            found.append(whole["choices"][0]["text"])
            body = {**shared, "n_predict": LENGTH}
            found.append((await asking.post("/completion", body)).json()["content"])
            parts = events(await asking.post("/completion", {**body, "stream": True}))
            found.append("".join(part["content"] for part in parts))
        return found

    found = asyncio.run(with_model(tiny_family("byte-level", "hermes"), work))
    assert found[0]
    assert set(found) == {found[0]}


def test_two_turns_of_claude_code(tiny_family: Callable[[str, str], Path]) -> None:
    """The line for billing differs between the turns, and the second reads the first one's prompt from the cache."""

    async def work(http: httpx2.AsyncClient) -> list[dict[str, Any]]:
        found = []
        for turn in (first_turn(), second_turn()):
            asked = {**turn, "max_tokens": 16, "temperature": 0}
            replies = [await Asking(http, mode).post("/v1/messages?beta=true", asked) for mode in ("always", "off")]
            on, off = (put_together(events_of(reply)) for reply in replies)
            assert [block.get("text") for block in on["content"]] == [block.get("text") for block in off["content"]]
            found.append(on)
        return found

    first, second = asyncio.run(with_model(tiny_family("qwen2", "Qwen-Qwen2.5-7B-Instruct"), work))
    prompt = first["usage"]["input_tokens"] + first["usage"]["cache_read_input_tokens"]
    assert second["usage"]["cache_read_input_tokens"] > 0.95 * prompt
