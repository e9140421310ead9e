"""Figures by traffic class, as requests end."""

from collections.abc import Callable
from dataclasses import astuple

import httpx2
import pytest

from prolepsis.control.traffic.feature import PartTraffic
from prolepsis.control.traffic.timeline import Timeline
from prolepsis.core.stats import DeviceSeconds, ProposerCounts, RequestStats
from prolepsis.core.traffic_sums import sums_of
from tests.clock import Clock
from tests.ops.console.scene import CHAT, Scene


async def test_requests_count_for_their_traffic_class(
    open_scene: Scene, browse: Callable[[Scene], httpx2.AsyncClient]
) -> None:
    http = browse(open_scene)
    for path, asked in (
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
        ("/v1/completions", {"prompt": "Hi"}),
    ):
        assert (await http.post(path, json={"model": "tiny", "max_tokens": 64, **asked})).status_code == 200
    reply = (await http.get("/admin/traffic")).json()
    chat, completions = reply["classes"]
    assert (chat["traffic_class"], chat["num_requests"], chat["modes"]) == (CHAT, 2, {"on": 2})
    assert chat["acceptance_rate"] == 14 / 22
    assert chat["proposers"]["suffix"]["per_position"] == [[6, 6], [6, 4], [4, 2]]
    assert 0.0 < chat["saved"] < 1.0
    assert completions["reasons"] == {"rule_off": 1}
    assert completions["acceptance_rate"] is None
    assert sum(span["num_requests"] for span in reply["spans"]) == 3


def test_spans_without_events_are_there_and_old_ones_leave() -> None:
    clock = Clock()
    line = Timeline(10.0, 4, clock)
    line.current().num_requests += 1
    clock.now = 1035.0
    line.current().num_requests += 2
    assert [(span.at, span.num_requests) for span in line.spans] == [(1000, 1), (1010, 0), (1020, 0), (1030, 2)]
    clock.now = 1041.0
    assert [span.at for span in line.spans] == [1010, 1020, 1030, 1040]


def test_a_long_pause_costs_one_span_and_a_clock_set_back_none() -> None:
    clock = Clock()
    line = Timeline(10.0, 4, clock)
    line.current()
    clock.now = 10.0**9
    assert line.spans[-1].at == 10**9
    clock.now = 5.0
    assert line.current().at == 10**9


def test_rates_of_an_empty_span_are_unknown() -> None:
    span = Timeline(10.0, 4, Clock()).current()
    assert (span.acceptance_rate, span.saved) == (None, None)
    span.num_draft_tokens, span.num_accepted, span.device_s, span.predicted_plain_s = 4, 3, 6.0, 8.0
    assert (span.acceptance_rate, span.saved) == (0.75, 0.25)


def test_the_gain_of_a_part_is_what_drafts_saved_or_in_shadow_would_have() -> None:
    part = PartTraffic(part="language", value="de")
    for _ in range(20):
        on = RequestStats(num_output_tokens=10, device=DeviceSeconds(plain=0.6, predicted_plain=1.0))
        on.proposers = {"suffix": ProposerCounts(1, 4, 4)}
        part.count(on, sums_of(on))
        plain = RequestStats(num_output_tokens=10, device=DeviceSeconds(plain=1.0, predicted_plain=1.0))
        part.count(plain, sums_of(plain))
    assert part.gain is not None
    assert astuple(part.gain) == pytest.approx((0.4, 0.4, 0.4)), "each request saves the same; plain ones do not count"
    for _ in range(20):
        shadow = RequestStats(num_output_tokens=10, device=DeviceSeconds(plain=1.0, predicted_plain=1.0))
        shadow.shadow = {"suffix": ProposerCounts(1, 4, 4, drafting=1.0, verifying=1.0)}
        part.count(shadow, sums_of(shadow))
    assert part.gain.estimate == pytest.approx(0.3), "two of ten tokens' time in shadow, four of ten before"
    assert (part.num_requests, part.gains.number) == (60, 40)
