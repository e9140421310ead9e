"""Evidence of requests in shadow: intervals that cover the truth, and what is counted while serving."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from prolepsis.control.rollout.shadow import ShadowEvidence, TrafficClassEvidence
from prolepsis.control.rollout.shadow_runtime import ShadowFeature
from prolepsis.core.config import CANDIDATE_HEAD, DRAFT_HEAD, ServerConfig
from prolepsis.core.stats import ProposerCounts, RequestStats
from prolepsis.core.traffic_sums import LEAST_REQUESTS, RatioSums
from tests.control.controls.test_serving import Named, Slow
from tests.control.health.ended import ended
from tests.fakes import EngineSetup
from tests.load.server import TableServer, serving
from tests.server.fakes import FakeEngine


def request(tokens: int, **proposers: ProposerCounts) -> RequestStats:
    return RequestStats(num_output_tokens=tokens, shadow=proposers)


def test_speedup_is_time_without_over_time_with() -> None:
    one = TrafficClassEvidence()
    one.add(request(100, head=ProposerCounts(20, 60, 40, drafting=5.0, verifying=10.0)))
    assert one.speedup is not None
    assert one.speedup.estimate == pytest.approx(100 / (100 - 40 + 15))
    assert one.speedup.lower is None, "one request says nothing of others"
    assert one.drafting.interval is not None
    assert one.drafting.interval.estimate == pytest.approx(0.05)


def test_requests_without_a_draft_count() -> None:
    one = TrafficClassEvidence()
    one.add(request(100))
    one.add(request(100, head=ProposerCounts(20, 60, 50)))
    one.add(request(200))
    assert one.speedup is not None
    assert one.speedup.estimate == pytest.approx(400 / 350)
    head = one.proposers["head"]
    assert head.saved.interval is not None
    assert head.saved.interval.estimate == pytest.approx(50 / 400), "over all requests, those before its first too"
    assert head.saved == RatioSums(3, 50.0, 400.0, 2500.0, 5000.0, 60000.0)
    assert head.accepted.number == 1


def test_intervals_cover_what_they_say() -> None:
    chance = random.Random(5)
    covered = 0
    for _ in range(400):
        sums = RatioSums()
        for _ in range(60):
            drafted = 1 + int(chance.expovariate(1 / 80))
            rate = chance.betavariate(3, 2)
            sums.add(sum(chance.random() < rate for _ in range(drafted)), drafted)
        found = sums.interval
        assert found is not None
        assert found.lower is not None
        assert found.upper is not None
        covered += found.lower <= 0.6 <= found.upper
    assert 0.91 <= covered / 400 <= 0.98


def test_rules_of_the_policy_have_evidence_of_their_own() -> None:
    evidence = ShadowEvidence()
    drafted, useless = request(100, head=ProposerCounts(20, 60, 40)), request(100)
    for length in ("short", "long"):
        evidence.add(f"completions/standard/free/{length}/edits", drafted, "1")
        evidence.add(f"completions/standard/free/{length}/chat", useless, "1")
    evidence.add("completions/standard/free/short", useless, "1")
    assert len(evidence.traffic_classes) == 5
    speedups = {rule: one.speedup.estimate for rule, one in evidence.rules.items() if one.speedup is not None}
    assert speedups == {"edits": pytest.approx(100 / 60), "chat": 1.0, "default": 1.0}
    evidence.add("completions/standard/free/short", useless, "2")
    assert list(evidence.rules) == ["default"]


def test_another_version_begins_again() -> None:
    evidence = ShadowEvidence()
    for version in ("1", "1", "2"):
        evidence.add("s", request(10, head=ProposerCounts(1, 2, 1)), version)
    assert (evidence.version, evidence.traffic_classes["s"].saved.number) == ("2", 1)


def test_an_interval_needs_some_requests() -> None:
    sums = RatioSums()
    for i in range(LEAST_REQUESTS):
        assert i == 0 or (sums.interval is not None and sums.interval.lower is None)
        sums.add(i % 2, 1.0)
    assert sums.interval is not None
    assert sums.interval.lower is not None


TRAFFIC_CLASS = "completions/standard/free/short"


def test_requests_belong_to_the_heads_and_the_policy_that_they_began_with() -> None:
    info, policy = FakeEngine().info, "p1"
    feature = ShadowFeature(lambda: info, lambda: policy)

    def end(heads: dict[str, str | None], began_with: str = "p1") -> int:
        request = ended(mode="shadow", reason="compared")
        request.prompts[0].stats.heads.update(heads)
        feature.on_request_end(replace(request, about=replace(request.about, policy_version=began_with)))
        return sum(one.saved.number for one in feature.evidence.traffic_classes.values())

    assert end({}) == 1
    info = replace(info, draft_head="a@1")
    assert end({DRAFT_HEAD: None}) == 1, "the head came while it ran"
    assert [end({DRAFT_HEAD: "a@1"}), end({DRAFT_HEAD: "a@1"})] == [1, 2]
    info = replace(info, candidate_head="b@1")
    assert end({DRAFT_HEAD: "a@1", CANDIDATE_HEAD: None}) == 2
    assert end({DRAFT_HEAD: "a@1", CANDIDATE_HEAD: "b@1"}) == 1, "evidence of another candidate starts afresh"
    policy = "p2"
    assert end({DRAFT_HEAD: "a@1", CANDIDATE_HEAD: "b@1"}) == 1, "it began with p1"
    assert end({DRAFT_HEAD: "a@1", CANDIDATE_HEAD: "b@1"}, "p2") == 1
    assert feature.shown().version == f"a@1 b@1 {info.fingerprint} p2"


def ask(server: TableServer, mode: str, prompt: str = "bcd") -> str:
    body: dict[str, Any] = {"model": "table", "prompt": prompt, "seed": 3, "ignore_eos": True, "max_tokens": 60}
    reply = httpx2.post(f"{server.url}/v1/completions", json=body | {"speculation": {"mode": mode}}, timeout=30)
    assert reply.status_code == 200, reply.text
    return str(reply.json()["choices"][0]["text"])


def test_shadow_says_what_speculation_would_bring(tmp_path: Path) -> None:
    setup = EngineSetup(max_model_len=512, num_pages=256, proposers=[Named("first")], model=Slow())
    with serving(TableServer(config=ServerConfig(controls_file=tmp_path / "controls.json"), setup=setup)) as server:
        plain = ask(server, "off")
        assert httpx2.get(f"{server.url}/admin/shadow").json()["traffic_classes"] == [], "nobody was in shadow"
        assert ask(server, "shadow") == plain
        for prompt in ("bce", "bcf"):
            ask(server, "shadow", prompt)
        [one] = httpx2.get(f"{server.url}/admin/shadow").json()["traffic_classes"]
        assert (one["traffic_class"], one["num_requests"], one["num_tokens"]) == (TRAFFIC_CLASS, 3, 180)
        [first] = one["proposers"]
        assert first["proposer"] == "first"
        assert first["acceptance_rate"]["estimate"] == 1.0, "it drafts the true continuation"
        assert 0.0 < one["cost"]["estimate"] < 0.5
        drafted = first["num_accepted"] / one["num_tokens"]
        assert 0.0 < first["saved"]["estimate"] < drafted, "less what its rows and its time cost"
        assert one["expected_speedup"]["estimate"] > 1.3
        ask(server, "auto")
        assert httpx2.get(f"{server.url}/admin/shadow").json()["traffic_classes"] == [one], (
            "what is verified is not shadow's"
        )
        server.check_ended_once()
