"""`prolepsis tune` as its user sees it."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from prolepsis.control.policy.check import NOTHING_KNOWN, usable_policy
from prolepsis.core.terminal.output import BAD_INPUT, FAILED
from prolepsis.lab.rehearsal.trace import Trace, write_trace
from prolepsis.server.cli.main import app
from tests.lab.rehearsal.test_rehearsal import MACHINE, line

POLICY = "default: {mode: 'off'}\nrules:\n  - {name: chat, match: {tenant: a}, mode: 'off'}\n"


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    write_trace(tmp_path / "trace.jsonl", Trace(lines=(line(0.0, tenant="a"), line(0.0, tenant="a"))))
    (tmp_path / "machine.json").write_text(MACHINE.to_json())
    (tmp_path / "policy.yaml").write_text(POLICY)
    files = {"--machine": "machine.json", "--policy": "policy.yaml", "--output": "tuned.yaml"}
    given = [part for flag, name in files.items() for part in (flag, str(tmp_path / name))]
    return ["tune", str(tmp_path / "trace.jsonl"), *given, "--unchecked"]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "250"})


def test_it_writes_a_policy_that_can_be_used_and_says_what_changed(arguments: list[str], tmp_path: Path) -> None:
    result = run(*arguments)
    assert result.exit_code == 0
    assert "best for latency: chat:" in " ".join(result.stdout.split())
    text = (tmp_path / "tuned.yaml").read_text()
    policy = usable_policy(text, "tuned.yaml", NOTHING_KNOWN)
    assert dict(policy.named_terms())["chat"].mode == "on"


def test_a_program_reads_the_frontier_and_a_status(arguments: list[str]) -> None:
    result = run(*arguments, "--json", "--exit-code", "--goal", "cost")
    assert result.exit_code == FAILED
    told = json.loads(result.stdout)
    assert told["goal"] == "cost"
    assert told["best"] in told["frontier"]
    assert told["best"]["machine_s_per_million"] < told["trials"][0]["machine_s_per_million"]


def test_the_frontier_is_drawn(arguments: list[str], tmp_path: Path) -> None:
    result = run(*arguments, "--html", str(tmp_path / "tuning.html"))
    assert result.exit_code == 0
    page = (tmp_path / "tuning.html").read_text()
    assert page.count("<circle") == int(re.findall(r"(\d+) rehearsals of trace.jsonl", page)[0])
    assert page.count('class="best"') == 1
    assert "rollout:" in page


def test_a_machine_that_was_never_checked_is_refused(arguments: list[str]) -> None:
    result = run(*arguments[:-1])
    assert result.exit_code == BAD_INPUT
    assert "was ever checked" in result.stderr


def test_an_unknown_goal_is_refused_by_name(arguments: list[str]) -> None:
    result = run(*arguments, "--goal", "speed")
    assert result.exit_code == BAD_INPUT
    assert all(name in result.stderr for name in ("speed", "latency", "cost", "goodput"))
