"""`prolepsis pilot` on a running server: its start, state and end; its report as text, JSON and a page."""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from typer.testing import CliRunner, Result

from prolepsis.control.cost.prices import PriceFile
from prolepsis.control.policy.source import PolicyFile
from prolepsis.control.store import records
from prolepsis.control.store.store import Store
from prolepsis.core.telemetry.logs import configure_logs
from prolepsis.server.cli.main import app
from tests.control.cost.test_pilot import BEGAN, changed, traffic
from tests.control.cost.test_runtime import BOOK
from tests.ops.console.scene import SceneEngine
from tests.server.conftest import served
from tests.server.fakes import FakeEngine
from tests.waiting import wait_for

CHECK = {
    "prompts": "prompts.jsonl",
    "sentence": "go: on code",
    "pilot": [{"name": "code", "match": {"domain": "code"}}],
}


def pilot(*words: str) -> Result:
    return CliRunner().invoke(app, ["pilot", "report", *words])


@pytest.fixture
def url(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Give a server on a store that has served two kinds of requests; what a check found lies here."""
    monkeypatch.setenv("COLUMNS", "250")
    monkeypatch.chdir(tmp_path)
    configure_logs("error")
    Path("check.json").write_text(json.dumps(CHECK))
    with served(FakeEngine(), store=store) as running:
        monkeypatch.setenv("PROLEPSIS_URL", running.url)
        for domain in ("code", "code", "chat"):
            said = [{"role": "user", "content": "Hi"}]
            body = {"model": "tiny", "messages": said, "metadata": {"domain": domain}}
            httpx2.post(f"{running.url}/v1/chat/completions", json=body).raise_for_status()
        yield running.url


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["pilot", *words])


def rules(url: str) -> list[str]:
    return [str(name) for name in httpx2.get(f"{url}/admin/policy").json()["rules"]]


def phases(url: str) -> dict[str, str]:
    return {row["rule"]: row["phase"] for row in httpx2.get(f"{url}/admin/rollouts").json()["rollouts"]}


def test_a_pilot_starts_on_what_a_check_found_and_ends_without_a_trace_in_the_policy(url: str) -> None:
    started = run("start")
    assert started.exit_code == 0, started.output
    assert re.search(r"pilot-code +2 +3", started.stdout)
    assert "\n+  - name: pilot-code\n" in started.stdout, "the change of the policy's text"
    assert phases(url) == {"pilot-code": "running"}
    again = json.loads(run("start", "--json").stdout)
    assert again == {"started": []}
    more = json.loads(run("start", "--default", "--share", "10", "--json").stdout)
    assert more["started"] == ["pilot-default"]
    assert more["pilot"][0]["matches"] == 1, "the first pilot keeps its own"
    shown = json.loads(run("status", "--json").stdout)["pilot"]
    assert [row["rule"] for row in shown] == ["pilot-code", "pilot-default"]
    ended = json.loads(run("stop", "--rule", "code", "--json").stdout)
    assert (ended["ended"], rules(url)) == (["pilot-code"], ["pilot-default"])
    assert run("stop").exit_code == 0
    assert rules(url) == []
    none = run("stop")
    assert (none.exit_code, "has no pilot" in none.stderr) == (2, True)


def test_a_pilot_that_harm_took_back_starts_again_and_is_kept(url: str) -> None:
    run("start")
    [rollout] = httpx2.get(f"{url}/admin/rollouts").json()["rollouts"]
    httpx2.post(f"{url}/admin/rollouts/{rollout['id']}/rollback", json={}).raise_for_status()
    assert json.loads(run("start", "--json").stdout) == {"started": ["pilot-code"]}
    assert phases(url) == {"pilot-code": "running"}
    assert run("stop", "--keep", "--reason", "it pays").exit_code == 0
    assert rules(url) == ["code"]
    assert "until" not in str(httpx2.get(f"{url}/admin/policy").json()["content"])


@pytest.mark.parametrize(
    ("changes", "words", "said"),
    [
        ({"pilot": [], "sentence": "do not: no"}, [], "has nothing that is worth a pilot; it ends: do not: no"),
        ({"prompts": "the shipped set", "pilot": [{"name": "all", "match": {}}]}, [], "says nothing of your traffic"),
        ({}, ["--rule", "prose"], "has nothing named prose"),
        ({}, ["--from", "prompts.jsonl"], "prompts.jsonl"),
        ({"pilot": [{"name": "prose", "match": {"domain": "prose"}}]}, [], "clients declare `domain` in `metadata`"),
        ({}, ["--tenant", "nobody"], "none of the last 3 requests matches pilot-nobody"),
    ],
)
def test_what_is_no_pilot_is_refused(url: str, changes: dict[str, object], words: list[str], said: str) -> None:
    Path("check.json").write_text(json.dumps(CHECK | changes))
    refused = run("start", *words)
    assert (refused.exit_code, rules(url)) == (2, [])
    assert said in " ".join(refused.stderr.split())


def test_a_rule_that_matches_nothing_starts_anyway(url: str) -> None:
    assert run("start", "--tenant", "nobody", "--anyway").exit_code == 0
    assert phases(url) == {"pilot-nobody": "running"}


def test_a_server_with_a_policy_file_gets_text_and_starts_what_is_in_it(url: str, store: Store) -> None:
    Path("policy.yaml").write_text("rules:\n  - {name: x, match: {route: /v1/completions}, mode: off}\n")
    with served(FakeEngine(), policy=PolicyFile(Path("policy.yaml")), store=store) as running:
        printed = run("start", "--url", running.url)
        assert (printed.exit_code, "policy.yaml: put these lines first" in printed.stderr.replace("\n", " ")) == (
            1,
            True,
        )
        Path("policy.yaml").write_text(f"rules:\n{printed.stdout}")
        wait_for(lambda: rules(running.url) == ["pilot-code"])
        wait_for(lambda: "pilot-code" in phases(running.url))
        assert run("start", "--url", running.url).exit_code == 0
        assert phases(running.url) == {"pilot-code": "running"}


def test_domains_and_languages_that_were_measured_become_rules(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    configure_logs("error")
    with served(SceneEngine(), store=store) as running:  # type: ignore[arg-type]  # it drafts
        monkeypatch.setenv("PROLEPSIS_URL", running.url)
        text = "traffic_classes: {domain: medical, language: [de, fr]}\ndefault: {mode: on}\n"
        httpx2.put(f"{running.url}/admin/policy", json={"text": text, "expect": 0}).raise_for_status()

        def ask(number: int, **metadata: str) -> None:
            body = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "metadata": metadata}
            for _ in range(number):
                httpx2.post(f"{running.url}/v1/chat/completions", json=body).raise_for_status()

        ask(4, domain="medical", language="fr")
        early = run("start", "--measured")
        assert (early.exit_code, "drafts surely save 2%" in " ".join(early.stderr.split())) == (2, True)
        ask(20, language="de")
        shown = CliRunner().invoke(app, ["show", "traffic", "--json"])
        parts = {(row["part"], row["value"]): row for row in json.loads(shown.stdout)["parts"]}
        numbers = {key: row["num_requests"] for key, row in parts.items()}
        de, fr = ("language", "de"), ("language", "fr")
        assert numbers == {("domain", "unknown"): 20, ("domain", "medical"): 4, de: 20, fr: 4}
        assert parts[fr]["gain"]["lower"] is None
        assert 0.1 < parts[de]["gain"]["lower"] < parts[de]["gain"]["estimate"] < 0.5
        assert parts[de]["acceptance_rate"] == 14 / 22
        started = json.loads(run("start", "--measured", "--json").stdout)
        assert started["started"] == ["pilot-language-de"]
        assert started["pilot"] == [{"rule": "pilot-language-de", "matches": 20, "of_recorded": 24}]
        assert rules(running.url) == ["pilot-language-de"]


def test_a_report_is_text_json_and_a_page(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    configure_logs("error")
    (tmp_path / "prices.yaml").write_text(BOOK)
    start = time.time() - 86400.0
    with store.database.write() as connection:
        rows = [changed(one, ended_at=start + (one.row["ended_at"] - BEGAN) / 60.0) for one in traffic(300)]  # type: ignore[operator]
        records.add(connection, rows)
    with served(FakeEngine(), store=store, prices=PriceFile(tmp_path / "prices.yaml")) as running:
        text = pilot("--url", running.url, "--html", str(tmp_path / "pilot.html"))
        [document] = json.loads(pilot("--url", running.url, "--since", "2d", "--json").stdout)["reports"]
        none = pilot("--url", running.url, "--since", "1m")
        wrong = pilot("--url", running.url, "--since", "lately")
        nowhere = pilot("--url", running.url, "--html", str(tmp_path / "none" / "pilot.html"))
    assert text.exit_code == 0, text.output
    for part in ("end to end, 95 % (s)", "cost of a million tokens (EUR)", "what the evidence cannot say", "Hardware:"):
        assert part in text.stdout
    change = next(one["change"] for one in document["figures"] if one["figure"] == "end to end, median (s)")
    assert change["lower"] < -0.3 < change["upper"]
    assert f"{100 * change['estimate']:.4g}%" in text.stdout
    page = (tmp_path / "pilot.html").read_text()
    assert page.count('<svg class="interval"') == 5, "none of acceptance, nor of a percentile of few"
    assert "What the evidence cannot say" in page
    assert all(limit in page.replace("&#39;", "'") for limit in document["limits"])
    assert "src=" not in page, "it needs no other file"
    assert "No request was compared" in none.stdout
    assert (wrong.exit_code, nowhere.exit_code) == (2, 2)
    assert "pilot.html cannot be written: No such file" in " ".join(nowhere.stderr.split())
    assert "--since is 'lately'" in wrong.stderr
