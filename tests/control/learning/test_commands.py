"""`prolepsis learning`: commands on the store, without a server."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url
from typer.testing import CliRunner, Result

from prolepsis.control.learning.shown import shown
from prolepsis.control.policy import versions
from prolepsis.control.store.database import Database
from prolepsis.control.store.examples import ExampleItem, ExampleTable, example_id
from prolepsis.control.store.lineage import LineageTable, RunTable
from prolepsis.control.store.migrate import upgrade
from prolepsis.control.store.signing import usable_keys
from prolepsis.core.config import ServerConfig
from prolepsis.core.learning import DatasetManifest, Example, HeadLineage, LearningRun, run_folders, tenant_digest
from prolepsis.core.terminal.output import BAD_INPUT
from prolepsis.server.cli.main import app
from tests.training.targets import save_target

POLICY = """
rules:
  - name: code
    match: {tenant: acme}
    mode: "on"
    learning: {tenants: [acme], on_forget: next}
"""
RUN = LearningRun(run_id="code-1", rule="code", phase="training", holder="host 1", terms={"tenants": ["acme"]})


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Database:
    monkeypatch.setenv("PROLEPSIS_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("PROLEPSIS_STORE", f"sqlite:///{tmp_path / 'store.sqlite'}")
    monkeypatch.chdir(tmp_path)
    made = Database(make_url(f"sqlite:///{tmp_path / 'store.sqlite'}"))
    upgrade(made)
    assert usable_keys(ServerConfig()) is not None  # a server has been started once
    examples = [_example(i, rule) for i, rule in enumerate(["code"] * 3 + ["chat"] * 2)]
    with made.write() as connection:
        ExampleItem.write(connection, [_item(example) for example in examples])
        versions.put(connection, POLICY, author="somebody", expect=0)
    return made


def _example(number: int, rule: str) -> Example:
    return Example(
        example_id=example_id(f"request-{number}"),
        tokenizer="t" * 16,
        rule=rule,
        tenant="acme",
        traffic_class="class",
        at=1.0 + number,
        prompt=(72, 105),
        answer=(72, 72),
        greedy=True,
    )


def _item(example: Example) -> ExampleItem:
    return ExampleItem(lambda: example, example.tenant, example.at, lambda _: None)


def _run(*words: str, code: int = 0) -> Result:
    done = CliRunner().invoke(app, ["learning", *words])
    assert done.exit_code == code, done.output
    return done


def _json(*words: str) -> Any:
    return json.loads(_run(*words, "--json").stdout)


def _last_act() -> dict[str, Any]:
    shown = CliRunner().invoke(app, ["audit", "show", "--last", "1", "--json"])
    [entry] = json.loads(shown.stdout)["entries"]
    return {**entry, **entry["details"]}


def _head(database: Database) -> None:
    """Keep the lineage of a head that learnt from two examples of the rule."""
    lineage = LineageTable(database)
    ids = {tenant_digest("acme"): tuple(sorted(example_id(f"request-{i}")[:16] for i in range(2)))}
    manifest = DatasetManifest(
        rule="code",
        made_at=1.0,
        first_at=0.0,
        last_at=1.0,
        target="f" * 32,
        tokenizer="t" * 16,
        filters={},
        examples=ids,
        held_out_from=1.0,
        base="",
    )
    key = lineage.add_dataset(manifest)
    head = HeadLineage(rule="code", parent="", manifests=(key,), serves=(), sha256="", made_at=2.0)
    assert lineage.add_head("code@1", head)


def test_status_shows_rules_run_and_heads(database: Database) -> None:
    _head(database)
    assert RunTable(database).swap(RUN)
    reply = _json("status")
    assert [(rule["rule"], rule["serves"], rule["num_examples"]) for rule in reply["rules"]] == [
        ("chat", "nobody", 2),
        ("code", "acme", 3),
    ]
    assert [run["rule"] for run in reply["runs"]] == ["code"]
    assert [head["head"] for head in reply["heads"]] == ["code@1"]
    assert "code@1" in _run("status").stdout


def test_export_writes_ids_for_its_user_only_and_is_an_act(database: Database, tmp_path: Path) -> None:
    file = tmp_path / "out.jsonl"
    assert _json("export", "code", "--to", str(file)) == {"rule": "code", "examples": 3, "file": str(file)}
    assert file.stat().st_mode & 0o777 == 0o600
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(line["prompt"], line["answer"], line["tenant"]) for line in lines] == [([72, 105], [72, 72], "acme")] * 3
    act = _last_act()
    assert (act["action"], act["subject"]) == ("learning.exported", "code")
    assert act["after"] == {"examples": 3}


@pytest.mark.parametrize(("leased_until", "left"), [(1e12, ["code-1"]), (0.0, [])], ids=["held", "killed"])
def test_forget_deletes_retires_and_is_an_act(database: Database, leased_until: float, left: list[str]) -> None:
    _head(database)
    for run_id in ("code-1", "code-0"):
        (run_folders(database.name) / run_id).mkdir(parents=True)
    assert RunTable(database).swap(replace(RUN, leased_until=leased_until))
    reply = _json("forget", "acme", "--rule", "code")
    assert reply == {"examples_deleted": 3, "retired": [], "retired_next": ["code@1"]}
    assert [example.rule for example in ExampleTable(database).read("chat")] == ["chat"] * 2
    assert not [*ExampleTable(database).read("code")]
    assert [folder.name for folder in run_folders(database.name).iterdir()] == left, "a living one looks for itself"
    act = _last_act()
    assert (act["action"], act["subject"], act["tenant"]) == ("learning.forgotten", "code", "acme")
    assert act["after"] == {**reply, "rule": "code"}


def test_forget_one_request(database: Database) -> None:
    assert _json("forget", "--request", "request-1")["examples_deleted"] == 1
    assert "nothing is named" in _run("forget", code=BAD_INPUT).stderr


def test_a_run_of_a_rule_that_does_not_learn_is_refused(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROLEPSIS_MODEL", str(save_target(tmp_path / "tiny")))
    refused = _run("run", "chat", code=BAD_INPUT)
    assert "no run of chat is due; rules of the policy in use that learn: code" in refused.stderr


def test_a_policy_file_comes_before_the_store(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "policy.yaml").write_text(POLICY.replace("name: code", "name: chat"))
    monkeypatch.setenv("PROLEPSIS_POLICY", str(tmp_path / "policy.yaml"))
    assert [rule["serves"] for rule in _json("status")["rules"]] == ["acme", "nobody"]


def test_without_a_policy_here_nobody_is_said_to_stop_learning(database: Database) -> None:
    assert {rule.serves for rule in shown(database, None).rules} == {"not known"}
