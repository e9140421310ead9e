"""`prolepsis audit` and `prolepsis store`, on the store that a server would use."""

import json
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy import update
from typer.testing import CliRunner, Result

from prolepsis.control.audit import chain
from prolepsis.control.audit.anchors import AnchorFeature, default_file, places
from prolepsis.control.audit.commands.export import LONGEST_WAIT_S, keep_delivering
from prolepsis.control.audit.entry import SERVED
from prolepsis.control.policy import versions
from prolepsis.control.store import records
from prolepsis.control.store.database import Database, store_url
from prolepsis.control.store.lineage import LineageTable
from prolepsis.control.store.signing import OPTION, AuditKeys, key_file
from prolepsis.control.store.tables import chain_links
from prolepsis.core.audit_event import AuditEvent
from prolepsis.core.config import ServerConfig
from prolepsis.core.errors import DeliveryFailed, StoreUnavailable
from prolepsis.core.learning import HeadLineage
from prolepsis.core.terminal.admin import NoServer
from prolepsis.core.terminal.output import UNPROVEN
from prolepsis.server.cli.main import app
from tests.control.store.fakes import record
from tests.control.store.learnt import example, manifest, put


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PROLEPSIS_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def database() -> Database:
    """The default store, with three entries and two records."""
    assert run("store", "upgrade").exit_code == 0
    url = store_url("auto")
    assert url is not None
    database = Database(url)
    with database.write() as connection:
        records.add(connection, [record("acme"), record("other")])
        for tenant in ("acme", "", "acme"):
            chain.append(connection, [AuditEvent(actor="ann", action="plan.applied", subject="plan", tenant=tenant)])
    return database


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def plain(*arguments: str, status: int = 0) -> dict[str, object]:
    done = run(*arguments, "--json")
    assert done.exit_code == status, done.output
    document = json.loads(done.stdout)
    assert isinstance(document, dict)
    return document


def test_without_a_store_commands_say_so_and_make_none(home: Path) -> None:
    for arguments in (["audit", "verify"], ["audit", "show"], ["audit", "export"], ["store", "prune", "--days", "1"]):
        done = run(*arguments)
        assert done.exit_code == 2
        assert "there is no store at" in done.stderr
    assert plain("store", "status")["schema"] is None
    assert run("audit", "verify", "--store", "none").exit_code == 2
    assert list(home.iterdir()) == []


@pytest.mark.usefixtures("database")
def test_the_store_says_what_it_holds_and_grows_up(home: Path) -> None:
    status = plain("store", "status")
    assert (status["request_records"], status["audit_entries"], status["policy_version"]) == (2, 3, 0)
    assert status["store"] == f"sqlite:///{home / 'data' / 'store.sqlite'}"
    assert plain("store", "upgrade")["schema_before"] == status["newest_schema"]


def test_a_chain_is_verified_against_the_head_noted_before(database: Database) -> None:
    first = plain("audit", "verify", status=UNPROVEN)
    head = str(first["head"])
    assert head.startswith("3:")
    assert "without an anchor" in str(first["unproven"])
    assert plain("audit", "verify", "--anchor", head, status=UNPROVEN)["faults"] == []
    assert run("audit", "verify", "--anchor", "soon").exit_code == 2
    with database.write() as connection:
        connection.execute(update(chain_links).where(chain_links.c.seq == 2).values(actor="eve"))
    done = run("audit", "verify")
    assert done.exit_code == 1
    assert "entry 2 has other details" in done.stderr


async def test_verify_says_what_signatures_and_anchors_prove(database: Database, home: Path) -> None:
    url = store_url("auto")
    assert url is not None
    signing = Database(url, options={OPTION: AuditKeys(key_file(ServerConfig()))})
    with signing.write() as connection:
        records.add(connection, [record("acme")])
    assert plain("store", "prune", "--days", "1")
    assert "before 4" in str(plain("audit", "verify", status=UNPROVEN)["unproven"])
    path = default_file(key_file(ServerConfig()), database)
    [place] = places(["auto"], path)
    await AnchorFeature(database, [place], CollectorRegistry(), period_s=1.0).tick()
    anchored = plain("audit", "verify", status=UNPROVEN)
    assert (anchored["faults"], anchored["anchored"], anchored["entries"]) == ([], 5, 5)
    assert len(anchored["unproven"]) == 1  # type: ignore[arg-type]
    assert plain("store", "prune", "--days", "1")
    assert "newer than the last anchor" in run("audit", "verify").stderr
    text = path.read_text()
    path.write_text(text.replace('"seq": 5', '"seq": 4'))
    forged = run("audit", "verify")
    assert (forged.exit_code, "the anchor of entry 4 has a signature" in forged.stderr) == (1, True)
    path.write_text(text + '{"chain": "aud')
    torn = run("audit", "verify")
    assert (torn.exit_code, "line 3" in torn.stderr, "no whole anchor" in torn.stderr) == (UNPROVEN, True, True)
    path.write_text("{}\nno JSON\n")
    assert (run("audit", "verify").exit_code, run("audit", "verify").stderr.count("line 2")) == (2, 1)
    assert run("audit", "verify", "--public-key", "prolepsis.yaml").exit_code == 2


@pytest.mark.parametrize("has", ["none", "another", "unreadable"])
def test_verify_without_the_servers_key_says_what_it_does_not_prove(home: Path, database: Database, has: str) -> None:
    servers = AuditKeys(home / "server" / "audit-key.pem")
    url = store_url("auto")
    assert url is not None
    with Database(url, options={OPTION: servers}).write() as connection:
        chain.append(connection, [AuditEvent(actor="ann", action="plan.applied")])
        records.add(connection, [record("acme")])
    own = key_file(ServerConfig()).with_suffix(".pub")
    if has == "another":
        _ = AuditKeys(key_file(ServerConfig())).public
    elif has == "unreadable":
        own.mkdir(parents=True)
    verified = plain("audit", "verify", status=UNPROVEN)
    assert verified["faults"] == []
    assert "without a public key, that the chain's end was signed by its writer" in str(verified["unproven"])
    assert ("--public-key" in run("audit", "verify").stderr) == (has != "none")
    named = plain("audit", "verify", "--public-key", str(servers.public_path), status=UNPROVEN)
    assert "public key" not in str(named["unproven"])
    if has == "another":
        wrong = run("audit", "verify", "--public-key", str(own))
        assert (wrong.exit_code, "unknown key" in wrong.stderr) == (1, True)


@pytest.mark.usefixtures("database")
def test_an_export_is_verified_without_the_store(home: Path) -> None:
    head = str(plain("audit", "verify", status=UNPROVEN)["head"])
    assert run("audit", "export", "-o", "audit.jsonl").exit_code == 0
    whole = (home / "audit.jsonl").read_text()
    assert run("audit", "export").stdout == whole
    assert plain("audit", "verify", "--file", "audit.jsonl", status=UNPROVEN)["head"] == head
    (home / "audit.jsonl").write_text(whole.replace("ann", "eve", 1))
    assert run("audit", "verify", "--file", "audit.jsonl").exit_code == 1
    (home / "audit.jsonl").write_text("{}\n")
    done = run("audit", "verify", "--file", "audit.jsonl")
    assert (done.exit_code, "line 1" in done.stderr) == (2, True)


def test_an_export_goes_on_where_the_last_one_ended(home: Path, database: Database) -> None:
    command = ("audit", "export", "-o", "audit.jsonl", "--cursor", "cursor.json", "--control-only")
    assert "3 entries are in audit.jsonl" in run(*command).stderr
    with database.write() as connection:
        chain.append(connection, [AuditEvent(actor="ann", action=action) for action in (SERVED, "kill.on")])
    assert "1 entries are in audit.jsonl" in run(*command).stderr
    assert [json.loads(line)["seq"] for line in (home / "audit.jsonl").read_text().splitlines()] == [1, 2, 3, 5]
    assert run("audit", "export", "-o", "ftp://host").exit_code == 2


def test_following_goes_on_through_failures() -> None:
    outcomes: list[int | Exception] = [1, StoreUnavailable("gone"), NoServer("gone"), DeliveryFailed("gone"), 2]
    waits: list[float] = []

    def deliver_new() -> int:
        outcome = outcomes.pop(0) if outcomes else KeyboardInterrupt()
        if isinstance(outcome, int):
            return outcome
        raise outcome

    with pytest.raises(KeyboardInterrupt):
        keep_delivering(deliver_new, 8.0, waits.append)
    assert waits == [8.0, 16.0, LONGEST_WAIT_S, LONGEST_WAIT_S, 8.0]


@pytest.mark.usefixtures("database")
def test_the_newest_entries_are_shown() -> None:
    shown = json.loads(run("audit", "show", "--last", "2", "--json").stdout)["entries"]
    assert [entry["seq"] for entry in shown] == [2, 3]
    assert [e["seq"] for e in json.loads(run("audit", "show", "--tenant", "acme", "--json").stdout)["entries"]] == [
        1,
        3,
    ]
    assert "plan.applied" in run("audit", "show").stdout


@pytest.mark.usefixtures("database")
def test_a_tenant_is_forgotten() -> None:
    forgotten = plain("store", "forget-tenant", "acme")
    assert forgotten == {
        "request_records_deleted": 1,
        "examples_deleted": 0,
        "heads_retired": [],
        "heads_retired_at_next_promotion": [],
        "audit_entries_erased": 2,
        "by_audit_entry": 4,
    }
    verified = plain("audit", "verify", status=UNPROVEN)
    assert (verified["erased"], verified["faults"]) == (2, [])
    assert "acme" not in run("audit", "export").stdout
    assert run("store", "forget-tenant", "").exit_code == 2


@pytest.mark.parametrize("of_file", [False, True])
def test_heads_that_learnt_from_a_tenant_leave_when_the_policy_says(
    database: Database, of_file: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = LineageTable(database)
    put(database, example(1), example(2, rule="chat"))
    for rule in ("code", "chat"):
        key = table.add_dataset(manifest(example(1), rule=rule))
        made = HeadLineage(rule=rule, parent="", manifests=(key,), serves=(), sha256="ab", made_at=1.0)
        assert table.add_head(f"{rule}@1", made)
    learning = "mode: on, learning: {tenants: [acme], on_forget: next}"
    policy = f"version: 1\nrules:\n- {{name: chat, match: {{tenant: acme}}, {learning}}}\ndefault: {{mode: off}}\n"
    if of_file:
        (tmp_path / "policy.yaml").write_text(policy)
        monkeypatch.setenv("PROLEPSIS_POLICY", str(tmp_path / "policy.yaml"))
    else:
        with database.write() as connection:
            versions.put(connection, policy, author="ann", expect=versions.NO_VERSION)
    shown = run("store", "forget-tenant", "acme").stdout
    assert [line.split() for line in shown.splitlines() if "heads" in line or "examples" in line] == [
        ["examples", "deleted", "2"],
        ["heads", "retired", "code@1"],
        ["heads", "retired", "at", "next", "promotion", "chat@1"],
    ]
    assert {label: bool(head.retired) for label, head in table.heads().items()} == {"chat@1": False, "code@1": True}
    last = [
        (entry["action"], entry["details"]) for entry in json.loads(run("audit", "show", "--json").stdout)["entries"]
    ]
    [(retired, about), (forgotten, what)] = last[-2:]
    assert (retired, about["subject"], forgotten) == ("head.retired", "code@1", "tenant.forgotten")
    assert what["after"] == {"request_records": 1, "examples": 2, "heads_retired": ["code@1"]}


@pytest.mark.usefixtures("database")
def test_pruning_deletes_records_and_is_on_record() -> None:
    assert plain("store", "prune", "--days", "1")["request_records_deleted"] == 0
    assert plain("store", "prune", "--days", "0")["request_records_deleted"] == 0, "0 days: never"
    assert plain("store", "prune", "--days", "0.0000001", "--yes")["request_records_deleted"] == 2
    last = json.loads(run("audit", "show", "--action", "records.pruned", "--json").stdout)["entries"][-1]
    assert last["details"]["after"]["request_records"] == 2


def test_pruning_says_what_it_will_delete_and_asks(database: Database) -> None:
    with database.write() as connection:
        served = AuditEvent(actor="key", action=SERVED, subject="r", tenant="acme", after={"prompt": "what?"})
        chain.append(connection, [served])
    arguments = ["store", "prune", "--days", "1e-12", "--text-days", "1e-12"]
    for answer in ("n\n", ""):
        refused = CliRunner().invoke(app, arguments, input=answer)
        assert refused.exit_code == 1
        assert "2 request records" in refused.stderr
        assert "texts of 1 requests" in refused.stderr
        assert "acme: 1" in refused.stderr
        assert plain("store", "status")["request_records"] == 2
    agreed = CliRunner().invoke(app, [*arguments, "--json"], input="y\n")
    reply = agreed.stdout.partition("{")[2]  # the runner shows the answer before it
    assert json.loads("{" + reply)["audit_texts_erased"] == 1
    assert plain("store", "status")["request_records"] == 0
    with database.read() as connection:
        found = chain.find(connection, "4")
    assert found is not None
    assert found.details is None
