"""A stage of a rollout mutes tickets about acceptance, and only while it lasts."""

import re
import shutil
import socket
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml
from prometheus_client import CollectorRegistry

from prolepsis.control.rollout.runtime import Rollouts
from prolepsis.control.rollout.silences import (
    TRIES,
    Silences,
    check_alertmanager,
    deployment_id,
    instances_of,
    matchers_of,
)
from prolepsis.control.rollout.store import RolloutStore
from prolepsis.control.store.controls import ControlTable
from prolepsis.control.store.migrate import migrated_in_memory
from prolepsis.core.audit_event import AuditEvent
from prolepsis.core.errors import ConfigError
from prolepsis.ops.monitoring.files import RUNBOOK_URL, monitoring_files, shipped
from prolepsis.ops.monitoring.objectives import parse_objectives
from tests.commands import free_port, serving
from tests.control.policy.policies import policy
from tests.control.rollout.alertmanager import FakeAlertmanager, fake_alertmanager
from tests.control.rollout.rollout import memory_store

ALERTMANAGER = shutil.which("prometheus-alertmanager")
NOW = 1_800_000_000.0
POLICY = """
    version: 7
    rules:
      - name: code
        match: {{}}
        mode: on
        rollout: {{stages: [25, 50], max_stage_s: {0}}}
        guardrails: [{{name: errors, metric: error_rate, limit: 0.2}}]
"""


class Replica:
    """A server with one rollout, whose stages an operator moves."""

    def __init__(
        self,
        url: str,
        store: RolloutStore | None = None,
        *,
        now: float = NOW,
        longest_s: int = 600,
        deployment: str = "ours",
        instance: str = "10.0.0.7:8000",
    ) -> None:
        self.now = now
        self.registry = CollectorRegistry()
        self.rollouts = Rollouts(
            store or memory_store(), lambda run: None, self.registry, model="tiny", clock=lambda: self.now
        )
        self.rollouts.adopt(policy(POLICY.format(longest_s)))
        self.audited: list[AuditEvent] = []
        self.silences = Silences(
            url,
            self.registry,
            emit=self.audited.append,
            deployment=lambda: deployment,
            labels=lambda: {"model": ["tiny"], "region": ["eu"], "instance": [self._resolved(instance)]},
            clock=lambda: self.now,
        )
        self.rollouts.listen(self.silences.on_change)

    def _resolved(self, instance: str) -> str:
        """Return the instance as after a question to a name server, which may hang."""
        assert threading.current_thread() is not threading.main_thread(), "the event loop waits for no name server"
        return instance

    async def steer(self, *commands: str) -> None:
        """Carry out commands, and tell Alertmanager after each."""
        for command in commands:
            [view] = await self.rollouts.views()
            await self.rollouts.command(view.id, command, "drill", force=True)  # type: ignore[arg-type]
            await self.silences.tick()

    def counted(self, result: str) -> float | None:
        return self.registry.get_sample_value("prolepsis_rollout_silences_total", {"result": result})


@pytest.fixture
def fake() -> Iterator[FakeAlertmanager]:
    with fake_alertmanager() as running:
        yield running


async def test_a_stage_posts_one_silence_for_tickets_about_acceptance(fake: FakeAlertmanager) -> None:
    replica = Replica(fake.url)
    await replica.steer("start")
    await replica.silences.tick()
    [silence] = fake.active()
    assert {(one["name"], one["value"], one["isEqual"], one["isRegex"]) for one in silence["matchers"]} == {
        ("cause", "acceptance", True, False),
        ("severity", "ticket", True, False),
        ("model", "(tiny)?", True, True),
        ("region", "(eu)?", True, True),
        ("instance", r"(10\.0\.0\.7:8000)", True, True),
        ("rule", "(code)", True, True),
    }
    begin, end = (datetime.fromisoformat(silence[name]).timestamp() for name in ("startsAt", "endsAt"))
    assert (begin, end) == (NOW, NOW + 600.0)
    [view] = await replica.rollouts.views()
    assert silence["createdBy"] == f"prolepsis ours rollout {view.id}"
    assert silence["comment"] == f"rollout of rule code, stage canary 25%, policy {view.policy_version}"
    assert (replica.counted("posted"), replica.counted("failed")) == (1.0, 0.0)


def _alerts() -> Mapping[str, frozenset[str]]:
    """Return the names of the labels that each alert has by the rule files, with the labels of what they record."""
    files = monitoring_files(parse_objectives(shipped("slos.yaml"), "slos.yaml"), RUNBOOK_URL)
    groups = [group for name in files if name.startswith("rules/") for group in yaml.safe_load(files[name])["groups"]]
    rules = [rule for group in groups for rule in group["rules"]]
    recorded = {rule["record"]: rule for rule in rules if "record" in rule}

    def names(rule: dict[str, Any]) -> set[str]:
        expression = rule["expr"]
        kept = {name for found in re.findall(r"\bby \(([^)]*)\)", expression) for name in found.split(", ")}
        made = set(re.findall(r'"(\w+)", "\$1"', expression))
        read = [recorded[one] for one in recorded if re.search(rf"\b{one}\b", expression) and one != rule.get("record")]
        return kept | made | set(rule.get("labels", ())) | {name for one in read for name in names(one)}

    found: dict[str, frozenset[str]] = {}
    for rule in rules:
        if "alert" in rule:
            key = " ".join((rule["alert"], rule["labels"]["severity"], rule["labels"]["cause"]))
            found[key] = frozenset(names(rule)) | ({"instance"} if rule["alert"] == "ServerDown" else set())
    return found


ALERTS = _alerts()
OURS = {"rule": "code", "instance": "10.0.0.7:8000", "traffic_class": "chat-completions/standard/free/short/code"}
"""Labels of what the rollout may explain."""
EXTERNAL: Sequence[dict[str, str]] = ({}, {"region": "eu"}, {"region": "eu", "model": "tiny"})
"""Labels that a Prometheus may add to all of its alerts."""


def is_muted(silence: dict[str, Any], labels: Mapping[str, str]) -> bool:
    """Return whether a silence matches an alert as Alertmanager does it: a label that is missing is an empty text."""

    def fits(matcher: dict[str, Any]) -> bool:
        value, pattern = labels.get(matcher["name"], ""), matcher["value"]
        found = re.fullmatch(pattern, value) is not None if matcher["isRegex"] else value == pattern
        return found == bool(matcher["isEqual"])

    return all(map(fits, silence["matchers"]))


@pytest.mark.parametrize("added", EXTERNAL)
async def test_of_all_alerts_only_drift_of_the_rule_on_its_servers_is_muted(
    fake: FakeAlertmanager, added: dict[str, str]
) -> None:
    await Replica(fake.url).steer("start")
    [silence] = fake.active()
    muted = set()
    for alert, names in ALERTS.items():
        name, severity, cause = alert.split()
        fixed = {"alertname": name, "severity": severity, "cause": cause, **added}
        labels = {**{one: OURS.get(one, "x") for one in names}, **fixed}
        if is_muted(silence, labels):
            muted.add(alert)
        others = [{**labels, one: "other"} for one in ("rule", "instance", "region", "model") if one in labels]
        lacking = [{one: value for one, value in labels.items() if one != lost} for lost in ("rule", "instance")]
        assert not any(is_muted(silence, one) for one in (*others, *lacking))
    assert muted == {"AcceptanceDrift ticket acceptance"}


def test_the_rule_files_have_tickets_of_the_whole_fleet_that_stay_loud() -> None:
    fleet = {
        alert.split()[0] for alert, names in ALERTS.items() if "ticket acceptance" in alert and "rule" not in names
    }
    assert fleet == {
        "AcceptanceBelowWeekly",
        "AcceptanceFloorBudgetBurns",
        "AnswersOutOfNorm",
        "CorrectionBudgetBurns",
        "CorrectionsAboveWeekly",
    }


async def test_a_long_stage_is_muted_for_hours_at_most(fake: FakeAlertmanager) -> None:
    await Replica(fake.url, longest_s=86400).steer("start")
    assert datetime.fromisoformat(fake.active()[0]["endsAt"]).timestamp() == NOW + 4 * 3600.0


async def test_the_next_stage_has_a_silence_of_its_own(fake: FakeAlertmanager) -> None:
    replica = Replica(fake.url)
    await replica.steer("start", "promote")
    [silence] = fake.active()
    assert "canary 50%" in silence["comment"]
    assert [(event.action, event.subject) for event in replica.audited] == [
        (f"rollout.{action}", silence["createdBy"].rpartition(" ")[2])
        for action in ("silenced", "silence_expired", "silenced")
    ]
    assert isinstance(replica.audited[-1].after, dict)
    assert replica.audited[-1].after["silence"] == silence["id"]


@pytest.mark.parametrize("end", [("hold",), ("rollback",), ("promote", "promote")], ids=lambda end: end[-1])
async def test_silences_end_when_no_stage_runs(fake: FakeAlertmanager, end: tuple[str, ...]) -> None:
    replica = Replica(fake.url)
    await replica.steer("start", *end)
    assert (len(fake.silences), fake.active()) == (len(end), [])
    if end == ("hold",):
        await replica.steer("resume")
        assert len(fake.active()) == 1


async def test_only_the_replica_that_makes_a_change_calls_and_it_ends_silences_of_others(
    fake: FakeAlertmanager,
) -> None:
    store = memory_store()
    first, second = Replica(fake.url, store), Replica(fake.url, store)
    await first.steer("start")
    await second.rollouts.tick()
    await second.silences.tick()
    assert (len(fake.silences), second.audited) == (1, [])
    await second.steer("rollback")
    assert fake.active() == []


async def test_two_deployments_of_one_policy_never_end_each_others(fake: FakeAlertmanager) -> None:
    ours, theirs = Replica(fake.url), Replica(fake.url, deployment="theirs", instance="10.0.0.8:8000")
    await ours.steer("start")
    await theirs.steer("start", "rollback")
    [silence] = fake.active()
    assert silence["createdBy"].startswith("prolepsis ours rollout code@")
    await ours.steer("rollback")
    assert fake.active() == []


async def test_silences_of_people_stay(fake: FakeAlertmanager) -> None:
    fake.silences["by-hand"] = {"id": "by-hand", "status": {"state": "active"}, "createdBy": "ann"}
    await Replica(fake.url).steer("start", "rollback")
    assert [one["id"] for one in fake.active()] == ["by-hand"]


async def test_an_alertmanager_that_fails_is_tried_again_and_given_up(fake: FakeAlertmanager) -> None:
    replica = Replica(fake.url)
    fake.status = 503
    await replica.steer("start")
    fake.status = 200
    await replica.silences.tick()
    assert (len(fake.active()), replica.counted("failed")) == (1, 0.0)
    fake.status = 503
    await replica.steer("promote")
    for _ in range(TRIES):
        await replica.silences.tick()
    fake.status = 200
    await replica.silences.tick()
    assert (len(fake.silences), replica.counted("failed")) == (1, 1.0)


async def test_a_stage_that_another_replica_ended_meanwhile_gets_no_silence(fake: FakeAlertmanager) -> None:
    store = memory_store()
    first, second = Replica(fake.url, store), Replica(fake.url, store)
    fake.status = 503
    await first.steer("start")
    fake.status = 200
    await second.steer("rollback")
    await first.rollouts.tick()
    await first.silences.tick()
    assert fake.active() == []


async def test_a_stop_tells_what_is_due(fake: FakeAlertmanager) -> None:
    replica = Replica(fake.url)
    [view] = await replica.rollouts.views()
    await replica.rollouts.command(view.id, "start", "drill")
    await replica.silences.close()
    assert len(fake.active()) == 1


@pytest.mark.parametrize("url", ["localhost:9093", "ftp://host", "http://", "http://[x", "http://host:99999"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"allowed: an http\(s\) URL"):
        check_alertmanager(url)


def test_a_refused_address_shows_no_password() -> None:
    with pytest.raises(ConfigError) as refused:
        check_alertmanager("ftp://ann:secret@host")
    assert "secret" not in str(refused.value)


@pytest.mark.skipif(ALERTMANAGER is None, reason="missing: apt-get install prometheus-alertmanager")
async def test_a_real_alertmanager_mutes_a_ticket_and_not_a_page(tmp_path: Path) -> None:
    async with real_alertmanager(tmp_path) as http:
        replica = Replica(str(http.base_url), now=datetime.now().timestamp())
        alerts = [{"labels": {"alertname": one, "cause": "acceptance", "severity": one}} for one in ("ticket", "page")]
        ours = {"model": "tiny", "region": "eu", **OURS}
        ticket = {"cause": "acceptance", "severity": "ticket", **ours}
        own = ("model", "region", "instance", "rule")
        alerts += [{"labels": {**ticket, name: "other", "alertname": f"other {name}"}} for name in own]
        lacking = [{k: v for k, v in ticket.items() if k not in lost} for lost in (("rule",), ("instance",))]
        alerts += [{"labels": {**one, "alertname": f"of the fleet {i}"}} for i, one in enumerate(lacking)]
        alerts.append({"labels": {**ticket, "alertname": "ours"}})
        alerts.append({"labels": {**ticket, "region": "", "model": "", "alertname": "ours without a region"}})
        (await http.post("/api/v2/alerts", json=alerts)).raise_for_status()
        await replica.steer("start")
        assert await muted(http) == {"ours", "ours without a region"}
        await replica.steer("promote")
        assert await muted(http) == {"ours", "ours without a region"}
        await replica.steer("rollback")
        assert await muted(http) == set()
        assert [replica.counted(result) for result in ("posted", "expired", "failed")] == [2.0, 2.0, 0.0]


async def muted(http: httpx2.AsyncClient) -> set[str]:
    """Return the alerts that a silence mutes; one that another alert inhibits is not among them."""
    alerts = (await http.get("/api/v2/alerts")).raise_for_status().json()
    assert {one["labels"]["alertname"] for one in alerts} >= {"ticket", "page"}
    return {one["labels"]["alertname"] for one in alerts if one["status"]["silencedBy"]}


@asynccontextmanager
async def real_alertmanager(folder: Path) -> AsyncIterator[httpx2.AsyncClient]:
    """Run the binary with the file that the package ships."""
    assert ALERTMANAGER is not None
    (folder / "alertmanager.yaml").write_text(shipped("alertmanager.yaml"))
    url = f"http://127.0.0.1:{(port := free_port())}"
    options = ["--cluster.listen-address=", f"--storage.path={folder / 'data'}"]
    files = [f"--config.file={folder / 'alertmanager.yaml'}", f"--web.listen-address=127.0.0.1:{port}"]
    with serving([ALERTMANAGER, *files, *options], f"{url}/-/ready", folder / "log"):
        async with httpx2.AsyncClient(base_url=url) as http:
            yield http


def test_the_servers_of_a_store_have_one_name_and_another_store_has_another() -> None:
    table = ControlTable(migrated_in_memory())
    name = deployment_id(table)
    assert len(name) == 12
    assert deployment_id(table) == name
    assert deployment_id(ControlTable(migrated_in_memory())) != name


def test_servers_are_called_as_prometheus_may_call_them() -> None:
    assert instances_of(["http://10.0.0.7:8000", "https://[::1]:8443"]) == ["10.0.0.7:8000", "[::1]:8443"]
    everywhere = instances_of([f"http://{socket.gethostname()}:8000"])
    assert {"127.0.0.1:8000", "localhost:8000", f"{socket.gethostname()}:8000"} <= set(everywhere)


@pytest.mark.parametrize(
    ("name", "values", "pattern"),
    [
        ("instance", ["a.b:1"], r"(a\.b:1)"),
        ("instance", ["m-1", "[::1]:8"], r"(\[::1\]:8|m-1)"),
        ("rule", ["code"], "(code)"),
        ("model", ["ORG/name v2"], "(ORG/name v2)?"),
        ("region", ["eu"], "(eu)?"),
    ],
)
def test_only_labels_that_prometheus_adds_may_be_missing(name: str, values: list[str], pattern: str) -> None:
    assert matchers_of({name: values}) == [{"name": name, "value": pattern, "isRegex": True, "isEqual": True}]
    assert matchers_of({"region": [""], "model": []}) == []
