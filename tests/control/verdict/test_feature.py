"""The verdict on a rule is the same, word for word, wherever it is shown, and it outlives the server."""

import re
import time
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml
from typer.testing import CliRunner

from prolepsis.control.policy.source import PolicyFile
from prolepsis.control.store.store import Store
from prolepsis.control.verdict.feature import VerdictFeature
from prolepsis.control.verdict.stored import VERDICTS_KEPT
from prolepsis.core.telemetry.logs import configure_logs
from prolepsis.server.cli.main import app
from tests.control.cost.test_runtime import BODY, Charging
from tests.paths import ROOT
from tests.server.conftest import served
from tests.waiting import wait_for
from tests.world.site import Site

POLICY = """
version: pilot
default: {mode: "off"}
rules:
  - name: editor
    match: {route: /v1/completions}
    mode: "on"
    rollout: {stages: [50], holdout: 50, gate: automatic}
    guardrails: [{name: errors, metric: error_rate, limit: 0.9}]
  - {name: copy, match: {route: /v1/chat/completions}, mode: "on", proposers: [draft_model]}
"""
ALERTS = ROOT / "src/prolepsis/ops/monitoring/alerts.yaml"


def command(*words: str) -> str:
    result = CliRunner().invoke(app, [*words])
    assert result.exit_code == 0, result.output
    return " ".join(result.stdout.split())


def test_one_verdict_in_the_same_words_everywhere(
    store: Store, sqlite: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.setenv("PROLEPSIS_STORE", sqlite)
    configure_logs("error")
    (tmp_path / "policy.yaml").write_text(POLICY)
    with served(Charging(), policy=PolicyFile(tmp_path / "policy.yaml"), store=store) as site:
        http = httpx2.Client(base_url=site.url)
        wait_for(lambda: http.get("/admin/rollouts").json()["rollouts"][0]["phase"] == "running")
        for _ in range(160):
            assert http.post("/v1/completions", json=BODY).status_code == 200

        def kept() -> Any:
            return next(one for one in http.get("/admin/verdicts").json()["verdicts"] if one["rule"] == "editor")

        wait_for(lambda: kept()["answer"] == "keep")
        wait_for(lambda: stored(store))
        rollout = http.get("/admin/rollouts").json()["rollouts"][0]
        shown = {
            "status": command("status", "--url", site.url),
            "pilot": command("pilot", "report", "--url", site.url),
            "rollouts": command("rollout", "show", "--url", site.url),
            "rollout": command("rollout", "show", rollout["id"], "--url", site.url),
            "console": " ".join(http.get("/console").text.split()),
            "page": " ".join(http.get(f"/console/rollouts/{rollout['id']}").text.split()),
            "review": command("review"),
            "alert": alerted(http.get("/metrics").text),
        }
        http.close()
    assert [place for place, text in shown.items() if "keep: it pays" not in text] == []


def stored(store: Store) -> bool:
    with store.database.read() as connection:
        kept = VERDICTS_KEPT.by_key(connection).get("editor")
    return kept is not None and kept.answer == "keep"


def alerted(metrics: str) -> str:
    """Return the alert's text as Prometheus would write it, were the verdict one to alert of."""
    [alert] = [
        rule
        for group in yaml.safe_load(ALERTS.read_text())["groups"]
        for rule in group["rules"]
        if rule.get("alert") == "SpeculationShouldStop"
    ]
    series = dict(re.findall(r'(\w+)="([^"]*)"', re.search(r"prolepsis_rule_verdict{(.*editor.*)} 1", metrics)[1]))  # type: ignore[index]
    text: str = alert["annotations"]["summary"]
    for label, value in series.items():
        text = text.replace(f"{{{{ $labels.{label} }}}}", value)
    return text


async def test_a_rule_speaks_of_its_own_requests_and_ends_with_the_policy(tmp_path: Path) -> None:
    site = Site(Charging(), folder=tmp_path, policy=POLICY)
    chat = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
    async with site.running() as http:
        await site.tick("rollout")
        for _ in range(3):
            await site.post("/v1/completions", **BODY)
            reply = await site.post("/v1/chat/completions", **chat)
        assert "reason=no_proposer" in reply.headers["x-spec-effective"]
        verdicts = {one["rule"]: one for one in (await site.get("/admin/verdicts"))["verdicts"]}
        assert list(verdicts) == ["editor", "copy", "default"]
        assert verdicts["copy"]["verdict"] == "off: no proposer that its rule names is loaded"
        assert verdicts["default"]["verdict"] == "off: no rule of the policy matched it, and the default is off"
        assert verdicts["editor"]["verdict"] == "not known yet: too few requests were compared"
        await http.put("/admin/kill", json={"on": True, "scope": "rule:editor", "reason": "test"})
        [editor] = [one for one in (await site.get("/admin/verdicts"))["verdicts"] if one["rule"] == "editor"]
        assert editor["verdict"] == "off: the kill switch stops it"
        (tmp_path / "policy.yaml").write_text("version: none\ndefault: {mode: 'off'}\n")
        await site.tick("policy")
        assert [one["rule"] for one in (await site.get("/admin/verdicts"))["verdicts"]] == ["default"]


async def test_without_a_policy_the_verdict_says_how_to_get_one(tmp_path: Path) -> None:
    site = Site(Charging(), folder=tmp_path)
    await site.post("/v1/completions", **BODY)
    [alone] = (await site.get("/admin/verdicts"))["verdicts"]
    assert (alone["rule"], alone["verdict"]) == (
        "default",
        "not known yet: no requests are drawn to be compared with plain decoding",
    )
    assert alone["rests_on"].endswith("by prediction it saves 38% of device time")


async def test_a_verdict_outlives_the_server(tmp_path: Path, store: Store) -> None:
    first, second = (Site(Charging(), folder=tmp_path, policy=POLICY, store=store) for _ in range(2))
    await first.tick("verdict")
    since = {one.rule: one.since for one in first.feature(VerdictFeature).verdicts.values()}
    await second.tick("verdict")
    assert {one.rule: one.since for one in second.feature(VerdictFeature).verdicts.values()} == since
    assert all(0.0 < at <= time.time() for at in since.values())
