"""Figures of answers by caches and by length."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import httpx2
import pytest

from prolepsis.control.traffic.feature import TrafficFeature
from prolepsis.core.engine_client import EngineHealth
from tests.clock import Clock
from tests.core.telemetry.test_requests import REQUEST, ended, prompt
from tests.core.test_bands import stats
from tests.ops.console.scene import Scene


def test_bands_hold_the_last_hour_and_its_bursts() -> None:
    clock = Clock()
    clock.now = 600.0
    feature = TrafficFeature(lambda: EngineHealth(alive=True, ready=True, detail=""), clock)
    half = replace(prompt(), request=replace(REQUEST, traffic_class="c"), stats=stats(cached=60))
    stored = replace(half, answer="cached", stats=replace(stats(cached=100), proposers={}))
    for minute, parts in enumerate(([half] * 3, [], [half, stored])):
        clock.now = 600.0 + 60.0 * minute
        feature.on_request_end(ended(*parts)) if parts else None
    found = {one.band: one for one in feature.reply().bands}
    assert found.keys() == {"cached_half_or_more", "answer_to_64", "response_cache"}
    cached = found["cached_half_or_more"]
    assert (cached.num_requests, cached.num_output_tokens, cached.acceptance_rate) == (4, 256, 0.75)
    assert cached.burst == pytest.approx(3 / (4 / 3)), "three in the busiest minute, four in three minutes"
    assert (found["response_cache"].num_requests, found["response_cache"].acceptance_rate) == (1, None)
    [traffic_class] = feature.reply().classes
    assert (traffic_class.num_requests, traffic_class.acceptance_levels) == (4, [0.75] * 3), "without the stored one"
    clock.now += 3600.0
    assert [one.num_requests for one in feature.reply().bands] == [0, 0, 0]


@pytest.mark.parametrize(
    ("header", "is_hit"),
    [
        ({}, False),
        ({"x-cache": "MISS"}, False),
        ({"x-cache": "HIT from proxy"}, True),
        ({"cf-aig-cache-status": "HIT"}, True),
        ({"x-portkey-cache-status": "SEMANTIC MISS"}, False),
        ({"x-portkey-cache-status": "SEMANTIC HIT"}, True),
        ({"cache-status": "gateway; hit; ttl=5"}, True),
        ({"cache-status": "gateway; fwd=uri-miss"}, False),
    ],
)
async def test_what_a_cache_in_front_knew_is_no_evidence(
    header: Mapping[str, str], is_hit: bool, open_scene: Scene, browse: Callable[[Scene], httpx2.AsyncClient]
) -> None:
    http, [rollout] = browse(open_scene), await open_scene.rollouts.views()
    await http.post(f"/admin/rollouts/{rollout.id}/start", json={})
    asked = {"model": "tiny", "prompt": "Hi", "max_tokens": 64}
    assert (await http.post("/v1/completions", json=asked, headers=header)).status_code == 200
    [rollout] = await open_scene.rollouts.views()
    assert any("do not count" in text for text in rollout.missing) is is_hit
    bands = {one["band"] for one in (await http.get("/admin/traffic")).json()["bands"]}
    assert ("front_cache" in bands) is is_hit
    assert ("known to a cache in front" in (await http.get("/console")).text) is is_hit
