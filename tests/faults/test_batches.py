"""Servers are killed while they run a batch: each line has one result, the one that it has without a batch."""

import json
import signal
from pathlib import Path
from typing import Any

import httpx2
import pytest

from prolepsis.control.store.tables import batch_lines
from prolepsis.core.config import ServerConfig
from tests.control.store.databases import lapse
from tests.server_process import serve_fake, serve_model, started
from tests.training.targets import config_of, save_target
from tests.waiting import wait_for


def line(number: int, model: str) -> dict[str, Any]:
    body = {"model": model, "prompt": [5, 6, 7 + number % 3], "max_tokens": 32, "seed": number, "ignore_eos": True}
    return {"custom_id": f"{number}", "method": "POST", "url": "/v1/completions", "body": body}


def create(url: str, lines: list[dict[str, Any]]) -> str:
    content = "".join(f"{json.dumps(one)}\n" for one in lines).encode()
    form: Any = {"files": {"file": ("in.jsonl", content)}, "data": {"purpose": "batch"}}
    file = httpx2.post(f"{url}/v1/files", **form).raise_for_status().json()
    body = {"input_file_id": file["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
    return str(httpx2.post(f"{url}/v1/batches", json=body).raise_for_status().json()["id"])


def shown(url: str, batch: str) -> dict[str, Any]:
    found: dict[str, Any] = httpx2.get(f"{url}/v1/batches/{batch}").raise_for_status().json()
    return found


def has_run(url: str, batch: str, number: int) -> None:
    wait_for(lambda: shown(url, batch)["request_counts"]["completed"] >= number)


def answers(url: str, batch: str) -> list[dict[str, Any]]:
    wait_for(lambda: shown(url, batch)["status"] == "completed")
    file = shown(url, batch)["output_file_id"]
    return [json.loads(one) for one in httpx2.get(f"{url}/v1/files/{file}/content").text.splitlines()]


def text(reply: dict[str, Any]) -> str:
    return str(reply["choices"][0]["text"])


def test_each_line_runs_once_whatever_is_killed(tmp_path: Path, sqlite: str) -> None:
    """A model answers; what was settled stays, what was in flight runs again with the same tokens."""
    engine = config_of(save_target(tmp_path))
    config = ServerConfig(store=sqlite, replay_sample=0.0, max_in_engine=8)
    with started(serve_model, config, engine) as (process, url):
        model = httpx2.get(f"{url}/v1/models").json()["data"][0]["id"]
        lines = [line(number, model) for number in range(16)]
        batch = create(url, lines)
        has_run(url, batch, 2)
        process.send_signal(signal.SIGKILL)
        process.wait()
    lapse(sqlite, batch_lines)
    with started(serve_model, config, engine) as (_, url):
        assert 2 <= shown(url, batch)["request_counts"]["completed"] < 16
        found = answers(url, batch)
        assert [one["custom_id"] for one in found] == [f"{number}" for number in range(16)]
        for one, asked in zip(found[::5], lines[::5], strict=True):
            alone = httpx2.post(f"{url}/v1/completions", json=asked["body"], timeout=60).raise_for_status().json()
            assert text(one["response"]["body"]) == text(alone)


@pytest.mark.parametrize(
    ("setting", "number"), [("postgresql", signal.SIGKILL), ("sqlite", signal.SIGTERM)], indirect=["setting"]
)
def test_another_server_runs_what_one_leaves(setting: str, number: signal.Signals) -> None:
    """At once where that one stops in order, else when its leases have lapsed."""
    config = ServerConfig(store=setting, replay_sample=0.0, max_in_engine=4)
    with started(serve_fake, config, None, 0.02) as (first, url), started(serve_fake, config, None, 0.02) as (_, other):
        batch = create(url, [line(i, "tiny") for i in range(30)])
        has_run(other, batch, 3)
        first.send_signal(number)
        first.wait()
        found = answers(other, batch)
        assert [one["custom_id"] for one in found] == [f"{i}" for i in range(30)]
