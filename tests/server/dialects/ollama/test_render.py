"""Answers as Ollama's: every stream equals its twin."""

import json
from dataclasses import replace
from typing import Any

import httpx2
import pytest

from tests.fake_client import INFO
from tests.server.conftest import served
from tests.server.fakes import ByteTokenizer, FakeEngine

ROOMY = replace(INFO, max_model_len=4096)
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
PROMPT: dict[str, Any] = {"model": "tiny", "prompt": "Hi"}
WITHOUT = ("created_at", "total_duration", "message", "response", "thinking", "logprobs")


def lines(reply: httpx2.Response) -> list[dict[str, Any]]:
    return [json.loads(line) for line in reply.text.splitlines()]


def read(parts: list[dict[str, Any]]) -> tuple[str, str, list[Any], list[Any]]:
    """Return text, thinking, calls and log-probabilities."""
    shown = [part.get("message", part) for part in parts]
    content = "".join(one["content"] if "content" in one else one["response"] for one in shown)
    calls = [call["function"] for one in shown for call in one.get("tool_calls", ())]
    logprobs = [token for part in parts for token in part.get("logprobs", ())]
    return content, "".join(one.get("thinking", "") for one in shown), calls, logprobs


@pytest.mark.parametrize("step", [1, 4, 500])
@pytest.mark.parametrize(
    ("path", "body", "text", "reason"),
    [
        ("chat", CHAT, "Grüße, world! 👋 done", "stop"),
        ("chat", {**CHAT, "options": {"num_predict": 9}}, "Grüße, world! 👋 done", "length"),
        ("chat", {**CHAT, "options": {"stop": ["world"]}, "logprobs": True, "top_logprobs": 1}, "Grüße, world", "stop"),
        ("chat", {**CHAT, "tools": [TOOL]}, f"<think>hm</think>I look.\n{CALL}\n{CALL}", "stop"),
        ("generate", PROMPT, "<think>hm</think>Grüße", "stop"),
        ("generate", {**PROMPT, "raw": True}, "<think>hm</think>Grüße", "stop"),
        ("generate", PROMPT, "", "stop"),
    ],
)
def test_the_stream_tells_what_its_twin_shows(
    step: int, path: str, body: dict[str, Any], text: str, reason: str
) -> None:
    tokenizer = ByteTokenizer("roles, text, tools and <think></think>")
    with served(FakeEngine(text=text, step=step, info=ROOMY), tokenizer=tokenizer) as running:
        whole = httpx2.post(f"{running.url}/api/{path}", json={**body, "stream": False}).json()
        parts = lines(httpx2.post(f"{running.url}/api/{path}", json=body))
    assert read(parts) == read([whole])
    last = parts[-1]
    assert [part["done"] for part in parts] == [*[False] * (len(parts) - 1), True]
    assert {k: v for k, v in last.items() if k not in WITHOUT} == {k: v for k, v in whole.items() if k not in WITHOUT}
    assert whole["done_reason"] == reason
    if "tools" in body:
        content, thinking, calls, _ = read([whole])
        assert (content, thinking) == ("I look.", "hm")
        assert calls == [{"index": i, "name": "weather", "arguments": {"city": "Köln"}} for i in range(2)]
    elif path == "generate":
        assert read([whole])[:2] == ((text, "") if body.get("raw") else (text[17:], "hm" if text else ""))


def test_times_are_nanoseconds() -> None:
    with served(FakeEngine()) as running:
        reply = httpx2.post(f"{running.url}/api/chat", json={**CHAT, "stream": False}).json()
    assert (reply["prompt_eval_duration"], reply["eval_duration"], reply["load_duration"]) == (10**8, 3 * 10**8, 0)
    assert reply["total_duration"] >= 5 * 10**8
    assert (reply["prompt_eval_count"], reply["eval_count"]) == (len("user:Hi\n"), 26)


@pytest.mark.parametrize(("keep_alive", "reason"), [(None, "load"), ("5m", "load"), (0, "unload")])
def test_without_a_question_nothing_is_generated(keep_alive: object, reason: str) -> None:
    with served(FakeEngine()) as running:
        for path, shown in (
            ("chat", {"message": {"role": "assistant", "content": ""}}),
            ("generate", {"response": ""}),
        ):
            reply = httpx2.post(f"{running.url}/api/{path}", json={"model": "tiny", "keep_alive": keep_alive}).json()
            assert reply == {"model": "tiny", "created_at": reply["created_at"], **shown, "done": True} | {
                "done_reason": reason
            }
    assert not running.engine.requests
