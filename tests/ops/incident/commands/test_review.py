"""`prolepsis review` on a store."""

import json
import time
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import promql_parser
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
from tests.loopback import Reply, Request, serving

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


def test_each_finding_is_posted_once_and_what_was_not_taken_is_posted_again(store: Store) -> None:
    taken: list[dict[str, str]] = []
    statuses = [200, 503]

    def take(request: Request) -> Reply:
        status = statuses.pop(0) if statuses else 200
        if status == 200:
            taken.append(json.loads(request.body))
            assert request.headers["idempotency-key"] == taken[-1]["key"]
        return Reply(status)

    with store.database.write() as connection:
        versions.put(connection, "owner: platform\n", author="ops", expect=versions.NO_VERSION)
    with serving(take) as url:
        words = ("review", "--tickets", f"{url}/hook?token=hunter22")
        failed = CliRunner().invoke(app, words)
        assert failed.exit_code == 2
        assert "127.0.0.1 did not take a ticket: 503; posted before: 1" in failed.stderr
        assert "hunter22" not in failed.output
        assert "posted 1 new of 2 tickets" in CliRunner().invoke(app, words).stderr
        assert "posted 0 new of 2 tickets" in CliRunner().invoke(app, words).stderr
        assert [(one["what"], one["subject"], one["owner"]) for one in taken] == [
            ("a breaker opened", "suffix chat", "platform"),
            ("acceptance fell", "suffix, chat", "platform"),
        ]
        assert len({one["key"] for one in taken}) == 2
    refused = CliRunner().invoke(app, ["review", "--tickets", "hook"])
    assert "allowed: http(s)://HOST" in refused.stderr


def test_prometheus_counts_for_the_safety_audit() -> None:
    asked: list[str] = []

    def answer(request: Request) -> Reply:
        query = dict(parse_qsl(urlsplit(request.path).query))["query"]
        asked.append(query)
        labels = {"outcome": "match"} if "prolepsis_replays_total" in query else {}
        labels |= {"policy": "words", "decision": "stop"} if "output_policy" in query else {}
        is_counted = "increase(" in query
        series = [{"metric": labels, "value": [0, "12"]}] if is_counted else []
        return Reply(body=json.dumps({"data": {"result": series}}).encode())

    with serving(answer) as url:
        document = json.loads(review("--period", "quarter", "--prometheus", url, "--json").stdout)
    counted = {row["what"]: row["number"] for row in document["safety"] if not row["act"] and row["number"]}
    assert counted == {
        "requests replayed: match": 12,
        "answers changed or ended by output policies: words, stop": 12,
        "faults of output policies: words": 12,
        "requests refused by role or policy": 12,
    }
    for query in asked:
        promql_parser.parse(query)
    assert sum("[7862400s]" in query for query in asked) == 4, "of 91 days"


def test_an_unknown_period_is_refused_by_name() -> None:
    result = CliRunner().invoke(app, ["review", "--period", "year"])
    assert "allowed: day, week, month, quarter" in result.stderr
