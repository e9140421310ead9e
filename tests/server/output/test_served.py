"""Output policies over HTTP: every endpoint, streamed and whole, with usage and the figures of both sides."""

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from torch import Tensor

from prolepsis.core.config import ServerConfig
from prolepsis.core.plan import SpecPlan
from prolepsis.engine.models.protocol import Batch, KVCache
from prolepsis.server.output.built_in import Patterns
from prolepsis.server.output.pipeline import LoadedPolicy
from tests.control.controls.test_serving import Named, Slow
from tests.fakes import EngineSetup
from tests.load.server import TableServer, serving
from tests.server.conftest import Served, served
from tests.server.fakes import FakeEngine
from tests.server.output.policies import loaded
from tests.waiting import wait_for

KEY = "sk-" + "a1B2" * 8
CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 100}
TEXT: dict[str, Any] = {"model": "tiny", "prompt": "Hi", "max_tokens": 100}
INPUT: dict[str, Any] = {"model": "tiny", "input": "Hi", "max_output_tokens": 100}


@pytest.fixture(params=["rewrite", "stop"])
def running(request: pytest.FixtureRequest) -> Iterator[tuple[Served, str, str]]:
    """A server whose engine writes a key, with the text that the client is to get and how it ends."""
    stops = request.param == "stop"
    with served(FakeEngine(text=f"the key {KEY} works"), output=[loaded(Patterns(stops=stops), name="keys")]) as one:
        yield one, "the key " if stops else "the key [SECRET] works", "content_filter" if stops else "stop"


def events_of(reply: httpx2.Response) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in reply.text.splitlines() if line.startswith("data: {")]
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("stream", [True, False])
def test_chat(running: tuple[Served, str, str], stream: bool) -> None:
    server, text, reason = running
    options = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}} if stream else {}
    body = CHAT | {"stream": stream, "logprobs": True, "return_token_ids": True} | options
    reply = httpx2.post(f"{server.url}/v1/chat/completions", json=body)
    assert KEY[3:11] not in reply.text
    if not stream:
        choice = reply.json()["choices"][0]
        assert (choice["message"]["content"], choice["finish_reason"]) == (text, reason)
        shown = "".join(token["token"] for token in choice["logprobs"]["content"])
        ids, usage = choice["token_ids"], reply.json()["usage"]
    else:
        chunks = events_of(reply)
        parts = [choice for chunk in chunks for choice in chunk["choices"]]
        assert "".join(part["delta"].get("content", "") for part in parts) == text
        assert parts[-1]["finish_reason"] == reason
        shown = "".join(token["token"] for part in parts for token in part["logprobs"]["content"])
        ids, usage = [token for part in parts for token in part["token_ids"]], chunks[-1]["usage"]
        running_usage = [chunk["usage"]["completion_tokens"] for chunk in chunks]
        assert running_usage == sorted(running_usage)
        assert running_usage[-1] == running_usage[-2]
    kept = text.replace("[SECRET]", "")
    assert shown.replace("<end>", "") == kept
    assert bytes(token for token in ids if token < 256).decode() == kept
    emitted = len(f"the key {KEY} works") + 1
    assert usage["completion_tokens"] == (emitted if reason == "stop" else len(f"the key {KEY} "))


@pytest.mark.parametrize("stream", [True, False])
def test_completions(running: tuple[Served, str, str], stream: bool) -> None:
    server, text, reason = running
    reply = httpx2.post(f"{server.url}/v1/completions", json=TEXT | {"stream": stream, "n": 2, "logprobs": 1})
    assert KEY[3:11] not in reply.text
    chunks = events_of(reply) if stream else [reply.json()]
    for index in range(2):
        parts = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
        assert "".join(part["text"] for part in parts) == text
        assert parts[-1]["finish_reason"] == reason
        assert parts[-1]["stop_reason"] == ("keys: [SECRET]" if reason == "content_filter" else None)


@pytest.mark.parametrize("stream", [True, False])
def test_responses(running: tuple[Served, str, str], stream: bool) -> None:
    server, text, reason = running
    reply = httpx2.post(f"{server.url}/v1/responses", json=INPUT | {"stream": stream})
    assert KEY[3:11] not in reply.text
    response = events_of(reply)[-1]["response"] if stream else reply.json()
    assert response["output"][0]["content"][0]["text"] == text
    if reason == "content_filter":
        assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "content_filter"})
        assert response["output"][0]["status"] == "incomplete"
    else:
        assert (response["status"], response["incomplete_details"]) == ("completed", None)


def test_a_stop_ends_the_work_of_the_engine(running: tuple[Served, str, str]) -> None:
    server, _, reason = running
    httpx2.post(f"{server.url}/v1/completions", json=TEXT)
    assert bool(server.engine.aborted) == (reason == "content_filter")


def server_with(tmp_path: Path, *output: LoadedPolicy, model: Slow | None = None) -> TableServer:
    setup = EngineSetup(max_model_len=512, num_pages=256, proposers=[Named("first")], model=model or Slow())
    config = ServerConfig(controls_file=tmp_path / "controls.json")
    made = TableServer(config=config, setup=setup, base_plan=SpecPlan(fixed_depth=3), output=output)
    made.engine.plan.apply(SpecPlan(fixed_depth=3))
    return made


def metrics_of(server: TableServer, **body: Any) -> tuple[str, dict[str, Any]]:
    asked = {"model": "table", "prompt": "bcd", "seed": 3, "ignore_eos": True, "max_tokens": 90, **body}
    asked["speculation"] = {"metrics": True}
    reply = httpx2.post(f"{server.url}/v1/completions", json=asked, timeout=30)
    assert reply.status_code == 200, reply.text
    return reply.json()["choices"][0]["text"], reply.json()["metrics"]


def test_acceptance_is_reported_on_both_sides_of_the_boundary(tmp_path: Path) -> None:
    with serving(server_with(tmp_path)) as server:
        text, metrics = metrics_of(server)
        whole = metrics["delivery"]
        assert whole["num_verified_draft_tokens"] == metrics["speculative_decoding"]["num_accepted_draft_tokens"] > 40
        assert whole["num_delivered_draft_tokens"] == whole["num_verified_draft_tokens"]
        assert whole["lost"] == {}
        stop = text[41:44]
        cut = text.index(stop)
        _, metrics = metrics_of(server, stop=[stop])
        part = metrics["delivery"]
        lost = sum(part["lost"].values())
        assert part["num_verified_draft_tokens"] == part["num_delivered_draft_tokens"] + lost
        assert 0 < part["num_delivered_draft_tokens"] <= cut
        assert part["lost"]["stop_string"] >= 2, "of three tokens one at most was the target's own"
        shown = httpx2.get(f"{server.url}/admin/health").json()["delivery"]
        [one] = shown["delivered"]
        assert (one["proposer"], one["traffic_class"]) == ("first", "completions/standard/free/short")
        verified = whole["num_verified_draft_tokens"] + part["num_verified_draft_tokens"]
        assert one["num_verified"] == verified == one["num_delivered"] + sum(one["lost"].values())
        labels = {"proposer": "first", "traffic_class": one["traffic_class"]}
        assert server.sample("delivery_verified_tokens_total", **labels) == verified
        assert server.sample("delivery_delivered_tokens_total", **labels) == one["num_delivered"]
        stopped = server.sample("delivery_lost_tokens_total", **labels, reason="stop_string")
        assert stopped == one["lost"]["stop_string"]


def test_text_cut_off_by_a_policy_counts_as_lost_to_it(tmp_path: Path) -> None:
    with serving(server_with(tmp_path)) as server:
        text, _ = metrics_of(server)
    word = text[30:36]
    policy = loaded(Patterns(patterns={"word": word}, stops=True), name="words")
    with serving(server_with(tmp_path, policy)) as server:
        shorter, metrics = metrics_of(server)
        assert shorter == text[: text.index(word)]
        delivery = metrics["delivery"]
        assert delivery["num_verified_draft_tokens"] > delivery["num_delivered_draft_tokens"]
        assert delivery["lost"]["policy"] >= 4
        assert httpx2.get(f"{server.url}/admin/health").json()["delivery"]["policies"] == [
            {"name": "words", "on_fault": "closed", "timeout_ms": 1000.0, "max_held": 4096}
        ]


class Slower(Slow):
    """Twenty milliseconds a pass: the answer takes seconds."""

    def forward(self, batch: Batch, cache: KVCache) -> Tensor:
        time.sleep(0.02)
        return super().forward(batch, cache)


def test_a_client_that_leaves_gets_nothing_of_a_whole_answer(tmp_path: Path) -> None:
    with serving(server_with(tmp_path, model=Slower())) as server:
        asked = {"model": "table", "prompt": "bcd", "seed": 3, "ignore_eos": True, "max_tokens": 500}
        body = json.dumps(asked).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n"
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.sendall(head.encode() + b"content-type: application/json\r\n\r\n" + body)
            running = server.engine.scheduler.requests
            wait_for(lambda: any(request.stats.num_accepted > 5 for request in list(running.values())))
        labels = {"proposer": "first", "traffic_class": "completions/standard/free/short"}
        wait_for(lambda: server.sample("delivery_lost_tokens_total", **labels, reason="left") > 5)
        assert server.sample("delivery_delivered_tokens_total", **labels) == 0.0
