"""Requests in shadow on a real engine over the table model: what they show of speculation, and what they cost."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx

from prolepsis.control.rollout.shadow_runtime import ShadowFeature
from prolepsis.core.config import CANDIDATE_HEAD, DRAFT_HEAD, ServerConfig
from tests.control.controls.test_serving import Named, Slow
from tests.control.health.ended import ended
from tests.fakes import EngineSetup
from tests.load.server import TableServer, serving
from tests.server.fakes import FakeEngine

TRAFFIC_CLASS = "completions/standard/free/short"


def test_requests_belong_to_the_heads_and_the_policy_that_they_began_with() -> None:
    info, policy = FakeEngine().info, "p1"
    feature = ShadowFeature(lambda: info, lambda: policy)

    def end(heads: dict[str, str | None], began_with: str = "p1") -> int:
        """Let a request end; return how many requests the evidence has."""
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
    reply = httpx.post(f"{server.url}/v1/completions", json=body | {"speculation": {"mode": mode}}, timeout=30)
    assert reply.status_code == 200, reply.text
    return str(reply.json()["choices"][0]["text"])


def test_shadow_says_what_speculation_would_bring(tmp_path: Path) -> None:
    setup = EngineSetup(max_model_len=512, num_pages=256, proposers=[Named("first")], model=Slow())
    with serving(TableServer(config=ServerConfig(controls_file=tmp_path / "controls.json"), setup=setup)) as server:
        plain = ask(server, "off")
        assert httpx.get(f"{server.url}/admin/shadow").json()["traffic_classes"] == [], "nobody was in shadow"
        assert ask(server, "shadow") == plain
        for prompt in ("bce", "bcf"):
            ask(server, "shadow", prompt)
        [one] = httpx.get(f"{server.url}/admin/shadow").json()["traffic_classes"]
        assert (one["traffic_class"], one["num_requests"], one["num_tokens"]) == (TRAFFIC_CLASS, 3, 180)
        [first] = one["proposers"]
        assert first["proposer"] == "first"
        assert first["acceptance_rate"]["estimate"] == 1.0, "it drafts the true continuation"
        assert 0.0 < one["cost"]["estimate"] < 0.5
        drafted = first["num_accepted"] / one["num_tokens"]
        assert 0.0 < first["saved"]["estimate"] < drafted, "less what its rows and its time cost"
        assert one["expected_speedup"]["estimate"] > 1.3
        ask(server, "auto")
        assert httpx.get(f"{server.url}/admin/shadow").json()["traffic_classes"] == [one], (
            "what is verified is not shadow's"
        )
        server.check_ended_once()
