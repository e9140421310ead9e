"""What takes long is tokenised in threads, which others' work does not fill."""

import asyncio
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import httpx2
import pytest
from anyio import to_thread

from tests.fake_client import INFO
from tests.server.fakes import ByteTokenizer, FakeEngine
from tests.world.site import Site

LONG = "x" * 9000
USER = {"role": "user", "content": "Hi"}
FUNCTION = {"name": "f", "arguments": f'{{"a": "{LONG}"}}'}


class Watched(ByteTokenizer):
    """Notes which threads encode and render."""

    def __init__(self, chat_template: str | None = "roles and text") -> None:
        super().__init__(chat_template)
        self.encoded: list[tuple[int, int]] = []
        self.rendered: list[int] = []

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        self.encoded.append((len(text), threading.get_ident()))
        return super().encode(text, add_special_tokens=add_special_tokens)

    def apply_chat_template(self, messages: Sequence[Mapping[str, object]], **options: Any) -> list[int]:
        self.rendered.append(threading.get_ident())
        return super().apply_chat_template(messages, **options)


def connect(tokenizer: ByteTokenizer, text: str = "ok") -> httpx2.AsyncClient:
    engine = FakeEngine(text=text, step=500, info=replace(INFO, max_model_len=1 << 16))
    return Site(engine, tokenizer=tokenizer).http


@pytest.mark.parametrize(
    ("changes", "off_loop"),
    [
        ({"messages": [USER]}, False),
        ({"chat_template_kwargs": {"enable_thinking": False}}, False),
        ({"messages": [{"role": "user", "content": LONG}]}, True),
        ({"messages": [{**USER, "name": LONG}]}, True),
        ({"messages": [{"role": "assistant", "content": "", "reasoning_content": LONG}]}, True),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "1", "function": FUNCTION}]}]}, True),
        ({"chat_template_kwargs": {"a": LONG}}, True),
        ({"chat_template_kwargs": {"a": ["x"] * 2000}}, True),
    ],
)
async def test_long_conversations_are_rendered_off_the_loop(changes: dict[str, Any], off_loop: bool) -> None:
    tokenizer = Watched()
    async with connect(tokenizer) as http:
        reply = await http.post("/v1/chat/completions", json={"model": "tiny", "messages": [USER], **changes})
    assert reply.status_code == 200, reply.text
    assert [thread != threading.get_ident() for thread in tokenizer.rendered] == [off_loop]


@pytest.mark.parametrize("path", ["chat/completions", "responses"])
async def test_long_reasoning_is_counted_off_the_loop(path: str) -> None:
    tokenizer = Watched("<think></think>")
    async with connect(tokenizer, f"<think>{LONG}</think>ok") as http:
        field = "messages" if path == "chat/completions" else "input"
        reply = await http.post(f"/v1/{path}", json={"model": "tiny", field: [USER]})
    assert reply.status_code == 200, reply.text
    assert '"reasoning_tokens":9000' in reply.text
    assert [thread != threading.get_ident() for length, thread in tokenizer.encoded if length == len(LONG)] == [True]


async def test_tokenisation_has_threads_of_its_own() -> None:
    others = to_thread.current_default_thread_limiter()
    holders = [object() for _ in range(int(others.total_tokens))]
    for holder in holders:
        others.acquire_on_behalf_of_nowait(holder)
    async with connect(Watched()) as http, asyncio.timeout(5):
        replies = [
            await http.post("/v1/completions", json={"model": "tiny", "prompt": LONG}),
            await http.post("/tokenize", json={"prompt": LONG}),
            await http.post("/detokenize", json={"tokens": [65]}),
        ]
    for holder in holders:
        others.release_on_behalf_of(holder)
    assert [reply.status_code for reply in replies] == [200, 200, 200]
