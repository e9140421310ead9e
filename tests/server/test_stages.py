"""Why was it slow: answer, metrics and console say the same stages of a request, and they add up to its time."""

import time

import httpx2
import pytest

from prolepsis.core.stages import STAGES
from tests.load.server import TableServer, serving
from tests.waiting import wait_for

BODY = {"model": "table", "prompt": "banana", "max_tokens": 24, "temperature": 0, "ignore_eos": True}


def test_answer_metrics_and_console_agree() -> None:
    server = TableServer()
    with serving(server), httpx2.Client(base_url=server.url, timeout=60) as http:
        began = time.monotonic()
        reply = http.post("/v1/completions", json=BODY | {"speculation": {"metrics": True}})
        took_s = time.monotonic() - began
        wait_for(lambda: server.sample("request_stage_seconds_total", tier="standard", stage="server") > 0)
        figures = reply.json()["metrics"]
        shown = figures["stages_ms"]
        total_s = sum(server.sample("request_stage_seconds_total", tier="standard", stage=one) for one in STAGES)
        assert sum(shown.values()) / 1000 <= total_s <= took_s + 0.001
        engine_ms = figures["queue_time_ms"] + figures["generation_time_ms"]
        assert sum(shown.values()) - shown["receive"] == pytest.approx(engine_ms, abs=0.01)
        assert shown["decode"] > 0
        for stage in ("receive", "prefill", "decode"):
            sampled = server.sample("request_stage_seconds_total", tier="standard", stage=stage)
            assert 1000 * sampled == pytest.approx(shown[stage], abs=0.01)
        page = http.get(f"/console/requests/{reply.headers['x-request-id']}").text
        assert "waiting for the work of others" in page
        assert "from its arrival until its answer was complete" in page


def test_of_several_prompts_there_are_none() -> None:
    server = TableServer()
    with serving(server), httpx2.Client(base_url=server.url, timeout=60) as http:
        asked = BODY | {"prompt": ["a", "b"], "speculation": {"metrics": True}}
        assert http.post("/v1/completions", json=asked).json()["metrics"]["stages_ms"] is None
