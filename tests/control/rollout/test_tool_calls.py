"""Tool calls as a metric: over HTTP, from the answer that the client gets to the rollout's evidence."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from prolepsis.control.rollout.runtime import Rollouts
from prolepsis.core.config import ServerConfig
from prolepsis.core.telemetry.metrics import Metrics
from tests.fake_client import INFO
from tests.server.application import build, feature_of
from tests.server.fakes import ByteTokenizer, FakeEngine
from tests.server.openai.test_tools import CALL, TOOL, USER

POLICY = """
default:
  mode: on
  rollout: {step_weights: 50, holdout: 50, gate: automatic}
  guardrails: [{name: calls, metric: tool_call_success, limit: 0.9}]
"""
WRONG = CALL.replace('"name"', '"called"')
BAD_JSON = CALL.replace('"Köln"}', '"Köln",}')


async def counted(folder: Path, text: str, **body: Any) -> tuple[bool, float]:
    """Ask with a tool; return whether requests of the canary counted, and the share that succeeded."""
    (folder / "policy.yaml").write_text(POLICY)
    metrics, engine = Metrics(), FakeEngine(info=replace(INFO, max_model_len=4096), text=text, step=5)
    app = build(ServerConfig(start_drafts=0), engine, ByteTokenizer(), metrics, policy=folder / "policy.yaml")
    rollouts = feature_of(app, Rollouts)
    [view] = await rollouts.views()
    await rollouts.command(view.id, "start", "")
    asked = {"model": "tiny", "messages": USER, "tools": [TOOL], **body}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as http:
        for i in range(16):
            reply = await http.post("/v1/chat/completions", json=asked, headers={"x-request-id": f"r{i}"})
            assert reply.status_code == 200, reply.text
    verdict = (await rollouts.view(view.id)).verdict
    assert verdict is not None
    [calls] = verdict.guardrails
    return calls.num_canary > 0, calls.estimate


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("text", "body", "expected"),
    [
        (CALL, {}, (True, 1.0)),
        (f"Let me look.\n{CALL}\n{CALL}", {"n": 2}, (True, 1.0)),
        (f"{CALL}\n{CALL}", {"parallel_tool_calls": False}, (True, 1.0)),
        (WRONG, {}, (True, 0.0)),
        (BAD_JSON, {}, (True, 0.0)),
        (f"{CALL}\n{WRONG}", {}, (True, 0.0)),
        (CALL, {"max_tokens": 60}, (True, 0.0)),
        ("No need < of tools.", {}, (False, 0.0)),
        (CALL, {"tools": None}, (False, 0.0)),
    ],
)
async def test_answers_with_a_call_count_and_succeed_if_all_calls_are_whole(
    tmp_path: Path, stream: bool, text: str, body: Any, expected: tuple[bool, float]
) -> None:
    assert await counted(tmp_path, text, stream=stream, **body) == expected
