"""`prolepsis review` on a store."""

import json
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from prolepsis.control.audit import chain
from prolepsis.control.policy import versions
from prolepsis.control.store import records
from prolepsis.control.store.store import Store
from prolepsis.core.audit_event import SERVER, AuditEvent
from prolepsis.core.config import DAY_S
from prolepsis.server.cli.main import app
from tests.control.store.fakes import record

OPENED = AuditEvent(actor=SERVER, action="breaker.open", subject="suffix chat", after={"reason": "cliff"})


def proposed(num_accepted: int) -> dict[str, object]:
    return {"suffix": {"num_draft_tokens": 600, "num_accepted": num_accepted}}


@pytest.fixture(autouse=True)
def two_weeks(store: Store, sqlite: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What commands have on record here; acceptance fell from one week to the other."""
    monkeypatch.setenv("PROLEPSIS_STORE", sqlite)
    monkeypatch.chdir(tmp_path)
    now = time.time()
    written = [
        record(ended_at=now - 60, traffic_class="chat", proposers=proposed(300)),
        record(ended_at=now - 8 * DAY_S, traffic_class="chat", proposers=proposed(500)),
    ]
    with store.database.write() as connection:
        records.add(connection, written)
        chain.append(connection, [OPENED])


def review(*words: str) -> Result:
    result = CliRunner().invoke(app, ["review", *words])
    assert result.exit_code == 0, result.output
    return result


def test_a_week_is_compared_with_the_week_before(tmp_path: Path) -> None:
    shown = review().stdout
    assert "| acceptance fell | suffix, chat | 83.3 % -> 50 %, 40 % less than before |" in shown
    assert "| a breaker opened | suffix chat | 1 x, last at" in shown
    assert "Prometheus was not asked" in shown
    review("-o", "review.md")
    assert (tmp_path / "review.md").read_text().startswith("# Review of")


def test_a_program_gets_the_figures() -> None:
    document = json.loads(review("--json").stdout)
    assert [one["what"] for one in document["look_at"]] == ["a breaker opened", "acceptance fell"]
    assert document["before"]["proposers"][0]["num_accepted"] == 500
    assert [one["what"] for one in json.loads(review("--period", "day", "--json").stdout)["look_at"]] == [
        "a breaker opened"
    ]


def test_a_quarter_names_owners_heads_and_drills(store: Store) -> None:
    swapped = AuditEvent(actor=SERVER, action="head.swapped", subject="draft_head", after={"head": "a@2"})
    with store.database.write() as connection:
        versions.put(connection, "owner: platform\n", author="ops", expect=versions.NO_VERSION)
        chain.append(connection, [swapped])
    document = json.loads(review("--period", "quarter", "--json").stdout)
    assert document["owners"] == {"default": "platform"}
    assert [one["subject"] for one in document["draft_heads"]] == ["draft_head"]
    assert "no drill was run" in [one["what"] for one in document["look_at"]]


def test_owners_are_those_of_the_policy_file_that_is_in_use(store: Store) -> None:
    in_use = {"default": {}, "rules": [], "owners": {"default": "platform", "chat": "team a"}}
    taken = [
        AuditEvent(actor=SERVER, action="policy.loaded", subject="old.yaml", after={"owners": {"default": "nobody"}}),
        AuditEvent(actor=SERVER, action="policy.reloaded", subject="policy.yaml", after=in_use),
    ]
    with store.database.write() as connection:
        versions.put(connection, "owner: another\n", author="ops", expect=versions.NO_VERSION)
        chain.append(connection, taken)
    assert json.loads(review("--json").stdout)["owners"] == in_use["owners"]


def test_what_clients_keep_is_no_change(store: Store) -> None:
    uploads = [AuditEvent(actor="k1", action="corpus.added", subject=f"file-{i}", tenant="acme") for i in range(65)]
    act = AuditEvent(actor="ops", action="policy.applied", subject="version 2", after={"version": 2})
    with store.database.write() as connection:
        chain.append(connection, [act, *uploads])
    assert [one["what"] for one in json.loads(review("--json").stdout)["changes"]] == ["policy.applied"]
    assert "policy.applied" in review().stdout


def test_an_unknown_period_is_refused_by_name() -> None:
    result = CliRunner().invoke(app, ["review", "--period", "year"])
    assert "allowed: day, week, month, quarter" in result.stderr
