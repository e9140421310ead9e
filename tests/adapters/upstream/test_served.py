"""The whole server in front of two pools: what policies and rollouts decide is where requests go."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from prolepsis.adapters.upstream.capabilities import server_config
from prolepsis.control.health.feature import HealthFeature
from prolepsis.control.rollout.runtime import Rollouts
from prolepsis.core.config import ServerConfig
from prolepsis.core.plan import SpecPlan
from prolepsis.core.telemetry.metrics import Metrics
from tests.adapters.upstream.fakes import DEPTH, FakeUpstream, two_pools
from tests.server.application import build, feature_of
from tests.server.fakes import ByteTokenizer

BODY = {"model": "tiny", "prompt": "hi", "max_tokens": 64, "temperature": 0}
CANARY = """
rules:
  - name: drafts
    match: {route: /v1/completions}
    mode: "on"
    shadow_percentage: 0
    rollout: {stages: [50], gate: manual}
    guardrails:
      - {name: taken, metric: acceptance_rate, limit: 0.1}
"""


@asynccontextmanager
async def server(plain: FakeUpstream, speculating: FakeUpstream, policy: Path) -> AsyncIterator[Any]:
    """Yield an HTTP client of a server, and the server."""
    metrics = Metrics()
    async with two_pools(plain, speculating, metrics.registry) as client:
        app = build(
            server_config(ServerConfig(), {}),
            client,
            ByteTokenizer(),
            metrics,
            base_plan=SpecPlan(num_speculative_tokens=DEPTH),
            policy=policy,
        )
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://localhost") as http:
            yield http, app


@asynccontextmanager
async def canary(plain: FakeUpstream, speculating: FakeUpstream, folder: Path) -> AsyncIterator[Any]:
    """Yield such a server's client and rollouts, and the view of the one of `CANARY`, which has started."""
    (folder / "policy.yaml").write_text(CANARY)
    async with server(plain, speculating, folder / "policy.yaml") as (http, app):
        rollouts = feature_of(app, Rollouts)
        [view] = await rollouts.views()
        await rollouts.command(view.id, "start", "")
        yield http, rollouts, view


@pytest.mark.parametrize(("mode", "effective"), [("off", "mode=off;reason=no_rule"), ("on", "mode=on;reason=spec")])
async def test_a_policy_chooses_the_pool(
    plain: FakeUpstream, speculating: FakeUpstream, tmp_path: Path, mode: str, effective: str
) -> None:
    (tmp_path / "policy.yaml").write_text(f'default: {{mode: "{mode}"}}\n')
    async with server(plain, speculating, tmp_path / "policy.yaml") as (http, _):
        reply = await http.post("/v1/completions", json={**BODY, "speculation": {"metrics": True}})
        delivered = (await http.get("/admin/health")).json()["delivery"]["delivered"]
    assert reply.json()["choices"][0]["text"] == "hello world"
    assert reply.headers["x-spec-effective"].startswith(effective)
    assert (len(plain.asked), len(speculating.asked)) == ((1, 0) if mode == "off" else (0, 1))
    assert delivered == [], "nothing says which tokens were drafts"
    assert (reply.json()["metrics"]["delivery"] is None) == (mode == "on")
    shown = reply.json()["metrics"]["speculative_decoding"]
    assert shown["num_accepted_draft_tokens"] == (0 if mode == "off" else 4)
    assert shown["acceptance_histogram"] == ([0] if mode == "off" else [])


async def test_drafts_that_a_pool_says_are_bad_open_the_breaker_and_teach_the_drift(
    plain: FakeUpstream, speculating: FakeUpstream, tmp_path: Path
) -> None:
    (tmp_path / "policy.yaml").write_text('default: {mode: "on"}\n')
    speculating.drafts, speculating.accepted = (200, 800, 2), [198, 2, 0, 0, 0]
    async with server(plain, speculating, tmp_path / "policy.yaml") as (http, app):
        health, effects = feature_of(app, HealthFeature), []
        for _ in range(2):
            await health.tick()
            reply = await http.post("/v1/completions", json={**BODY, "speculation": {"metrics": True}})
            effects.append(reply.headers["x-spec-effective"].split(";")[1])
            await health.tick()
        [(key, breaker)] = health.breakers.breakers.all.items()
        drift = health.drift.streams.all[key].state
    assert effects == ["reason=speculating", "reason=breaker_open"]
    assert (breaker.state, breaker.reason) == ("open", "acceptance")
    assert drift.acceptance.number == 1
    assert drift.acceptance.total == pytest.approx(1 / 64)
    assert (len(speculating.asked), len(plain.asked)) == (1, 1)


async def test_the_arms_of_a_rollout_are_the_pools(
    plain: FakeUpstream, speculating: FakeUpstream, tmp_path: Path
) -> None:
    async with canary(plain, speculating, tmp_path) as (http, rollouts, _):
        effects = [(await http.post("/v1/completions", json=BODY)).headers["x-spec-effective"] for _ in range(24)]
        [_] = await rollouts.views()
    num_canary = sum("arm=canary" in effect for effect in effects)
    assert 0 < num_canary < 24
    assert all(effect.startswith("mode=on") == ("arm=canary" in effect) for effect in effects)
    assert (len(speculating.asked), len(plain.asked)) == (num_canary, 24 - num_canary)


async def test_after_a_rollback_the_speculating_pool_does_not_stand_in_for_the_plain_one(
    plain: FakeUpstream, speculating: FakeUpstream, tmp_path: Path
) -> None:
    async with canary(plain, speculating, tmp_path) as (http, rollouts, view):
        await rollouts.command(view.id, "rollback", "")
        before = await http.post("/v1/completions", json=BODY)
        plain.status = 500
        after = await http.post("/v1/completions", json=BODY)
    assert before.headers["x-spec-effective"].startswith("mode=off;reason=rolled_back;")
    assert after.status_code == 503
    assert speculating.asked == []


async def test_without_a_pool_the_server_says_so(
    plain: FakeUpstream, speculating: FakeUpstream, tmp_path: Path
) -> None:
    (tmp_path / "policy.yaml").write_text('default: {mode: "on"}\n')
    plain.status = speculating.status = 500
    async with server(plain, speculating, tmp_path / "policy.yaml") as (http, _):
        reply = await http.post("/v1/completions", json=BODY)
        ready = await http.get("/health/ready")
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "upstream_unavailable")
    assert reply.headers["retry-after"]
    assert ready.status_code == 503
