"""`prolepsis incident` on a store, and on a server."""

import json
import tarfile
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import httpx2
import pytest
from typer.testing import CliRunner, Result

from prolepsis.control.audit import chain
from prolepsis.control.audit.entry import SERVED
from prolepsis.control.policy import versions
from prolepsis.control.store.store import Store
from prolepsis.core.audit_event import SERVER, AuditEvent
from prolepsis.core.telemetry.logs import configure_logs
from prolepsis.ops.monitoring.files import dashboards
from prolepsis.server.cli.main import app
from tests.loopback import Reply, Request, serving
from tests.server.conftest import served
from tests.server.fakes import FakeEngine

EVENTS = (
    AuditEvent(actor=SERVER, action="server.started", versions={"software": "1.2"}, after={"server": {"port": 8000}}),
    AuditEvent(actor="command line, ann", action="kill.on", subject="all", after={"on": True, "reason": "drill"}),
    AuditEvent(actor="key1", action=SERVED, subject="request", tenant="acme"),
    AuditEvent(actor=SERVER, action="rollout.rolled_back", subject="main/wider", after={"reason": "slower"}),
)


@pytest.fixture
def store(store: Store, sqlite: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """The store that commands use here, with `EVENTS`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PROLEPSIS_STORE", sqlite)
    monkeypatch.setenv("PROLEPSIS_DATA", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")
    configure_logs("error")
    with store.database.write() as connection:
        chain.append(connection, EVENTS)
    return store


def incident(*words: str) -> Result:
    return CliRunner().invoke(app, ["incident", *words])


def timeline(*words: str) -> Result:
    return CliRunner().invoke(app, ["show", "timeline", *words])


def test_the_timeline_has_all_but_served_requests(store: Store) -> None:
    rows = json.loads(timeline("--json").stdout)
    assert [(row["kind"], row["what"]) for row in rows] == [
        ("deployment", "server.started"),
        ("change", "kill.on"),
        ("rollout", "rollout.rolled_back"),
    ]
    assert json.loads(timeline("--from", "2h", "--to", "1h", "--json").stdout) == []
    assert "reason drill" in timeline().stdout
    assert "| rollout | rollout.rolled_back | server | main/wider | reason slower |" in (timeline("--markdown").stdout)


def test_a_server_has_the_same_timeline(store: Store) -> None:
    with served(FakeEngine(), store=store) as running:
        shown = json.loads(timeline("--url", running.url, "--json").stdout)
    assert shown[:3] == json.loads(timeline("--json").stdout)[:3]


def test_a_wrong_time_says_what_is_allowed(store: Store) -> None:
    result = timeline("--from", "yesterday")
    assert (result.exit_code, "allowed: now, so long ago" in result.stderr) == (2, True)


NO_SERVER = "http://127.0.0.1:9"


def files_of(archive: Path) -> dict[str, str]:
    with tarfile.open(archive) as tar:
        assert tar.getnames()[0] == "incident/index.md"
        files = {name.removeprefix("incident/"): tar.extractfile(name) for name in tar.getnames()}
        return {name: file.read().decode() for name, file in files.items() if file is not None}


def test_a_server_that_is_down_leaves_a_snapshot_of_the_store(store: Store, tmp_path: Path) -> None:
    (tmp_path / "server.log").write_text("")
    out, log = tmp_path / "it.tar.gz", str(tmp_path / "server.log")
    result = incident("--url", NO_SERVER, "--log", log, "--log", "none.log", "-o", str(out))
    assert result.exit_code == 0, result.output
    files = files_of(out)
    assert "rollout.rolled_back" in files["timeline.md"]
    assert json.loads(files["started.json"])["configuration"] == {"server": {"port": 8000}}
    assert {"requests.json", "store/policies.json", "store/rollouts.json", "here.json", "log-1.txt"} <= files.keys()
    missing = files["index.md"].partition("## Missing")[2]
    assert (
        f"| `metrics.txt` | metrics of the moment, in Prometheus's form | no server answers at {NO_SERVER}" in missing
    )
    assert "none.log cannot be read" in missing
    assert "metrics.txt" not in files


def test_a_snapshot_names_no_one_and_is_on_record(store: Store, tmp_path: Path) -> None:
    out = tmp_path / "it.tar.gz"
    assert incident("--url", NO_SERVER, "-o", str(out)).exit_code == 0
    files = files_of(out)
    assert "ann" not in json.loads(files["changes.json"])[1]["details"]["actor"]
    assert "command line, ann" not in "".join(files.values())
    assert "| kill.on | person 1 | all |" in files["timeline.md"]
    assert timeline("--json").stdout.count("incident.snapshot") == 1


def test_a_server_adds_its_metrics_and_states(store: Store, tmp_path: Path) -> None:
    out = tmp_path / "it.tar.gz"
    with served(FakeEngine(), store=store) as running:
        body = {"model": "tiny", "prompt": "Tell me of Ann", "max_tokens": 4}
        assert httpx2.post(f"{running.url}/v1/completions", json=body).status_code == 200
        result = incident("--url", running.url, "-o", str(out))
    assert result.exit_code == 0, result.output
    files = files_of(out)
    assert "prolepsis_requests_total" in files["metrics.txt"]
    assert json.loads(files["server/newest.json"])["requests"]
    assert "Tell me of Ann" not in "".join(files.values())
    assert {f"server/{name}" for name in ("kill.json", "judges.json", "rollouts.json", "traffic.json")} <= files.keys()


def test_without_a_store_the_server_tells_the_changes(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(FakeEngine(), store=store) as running:
        monkeypatch.setenv("PROLEPSIS_STORE", "none")
        result = incident("--url", running.url, "-o", str(tmp_path / "it.tar.gz"))
    assert result.exit_code == 0, result.output
    files = files_of(tmp_path / "it.tar.gz")
    assert "kill.on" in files["timeline.md"]
    assert "no store is configured" in files["index.md"]


def test_a_policy_that_names_a_tenant_does_not_name_it_in_a_snapshot(store: Store, tmp_path: Path) -> None:
    text = "# asked for by Ann of acme\nrules: [{name: one, match: {tenant: [acme]}}]\n"
    with store.database.write() as connection:
        versions.put(connection, text, author="ann", expect=versions.NO_VERSION)
    out = tmp_path / "it.tar.gz"
    assert incident("--url", NO_SERVER, "-o", str(out)).exit_code == 0
    policy = json.loads(files_of(out)["store/policies.json"])["in_use"]
    assert policy["text"]["rules"][0]["match"] == {"tenant": ["tenant 1"]}
    assert "acme" not in json.dumps(policy)


def test_prometheus_adds_alerts_and_what_the_dashboards_showed(store: Store, tmp_path: Path) -> None:
    def answer(request: Request) -> Reply:
        query = dict(parse_qsl(urlsplit(request.path).query))
        labels = {"alertname": "QueueGrows"} if "ALERTS" in query["query"] else {"tenant": "acme"}
        series = {"metric": labels, "values": [[float(query["start"]), "0.5"]]}
        return Reply(body=json.dumps({"data": {"result": [series]}}).encode())

    out = tmp_path / "it.tar.gz"
    with serving(answer) as url:
        result = incident("--url", NO_SERVER, "--prometheus", url, "-o", str(out))
    assert result.exit_code == 0, result.output
    files = files_of(out)
    assert "QueueGrows" in files["alerts.json"]
    assert "QueueGrows" in files["timeline.md"]
    series = json.loads(files["series.json"])
    assert series["times"]["number"] == 61
    assert len(series["panels"]) == sum(
        "targets" in panel for dashboard in dashboards() for panel in dashboard["panels"]
    )
    [first, *_] = series["panels"][0]["queries"]
    assert first["lines"] == [{"labels": {"tenant": "tenant 1"}, "values": [0.5, *[None] * 60]}]
    assert "acme" not in files["series.json"]


def test_a_prometheus_that_is_down_costs_only_what_it_knows(store: Store, tmp_path: Path) -> None:
    out = tmp_path / "it.tar.gz"
    result = incident("--url", NO_SERVER, "--prometheus", NO_SERVER, "-o", str(out))
    assert result.exit_code == 0, result.output
    files = files_of(out)
    assert files.keys() >= {"timeline.md", "requests.json"}
    assert files.keys().isdisjoint({"alerts.json", "series.json"})
    assert files["index.md"].count(f"no Prometheus answers at {NO_SERVER}") == 2
