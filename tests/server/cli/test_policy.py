"""`prolepsis policy`: check, diff and explain, and the versions of a running server."""

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import cast

import pytest
from typer.testing import CliRunner, Result

from prolepsis.control.store.store import Store
from prolepsis.control.store.writer import ItemWriter
from prolepsis.core.telemetry.logs import configure_logs
from prolepsis.server.cli.main import app
from tests.control.controls.flag_files import flag, write
from tests.control.store.databases import migrated_setting, opened
from tests.paths import ROOT
from tests.server.conftest import served
from tests.server.fakes import FakeEngine

EXAMPLE = ROOT / "docs" / "how-to" / "policy-example.yaml"
CHAT = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "temperature": 0.2}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


def policy(*arguments: str | Path, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, ["policy", *map(str, arguments)], input=stdin)


def explained(*flags: str, body: object = CHAT, file: Path = EXAMPLE) -> dict[str, object]:
    result = policy("explain", file, "--request", "-", "--json", *flags, stdin=json.dumps(body))
    assert result.exit_code == 0, result.output
    document: dict[str, object] = json.loads(result.stdout)
    return document


def test_the_example_is_right() -> None:
    result = policy("check", "--strict", "--json", EXAMPLE)
    assert (result.exit_code, json.loads(result.stdout)["findings"]) == (0, [])
    assert policy("check", EXAMPLE).exit_code == 0


def test_check_says_where_and_fails(here: Path) -> None:
    (here / "p.yaml").write_text("rules:\n- name: a\n  match: {tier: premum}\n  rollout: {stages: [1, 50]}\n")
    result = policy("check", "p.yaml", "--json")
    assert result.exit_code == 1
    findings = json.loads(result.stdout)["findings"]
    assert [(one["severity"], one["line"], one["path"]) for one in findings] == [
        ("error", 3, "rules[0].match.tier"),
        ("error", 4, "rules[0].rollout"),
    ]
    shown = policy("check", "p.yaml")
    assert "did you mean 'premium'?" in shown.stdout

    (here / "p.yaml").write_text("rulez: 3\n")
    result = policy("check", "p.yaml", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout) == {
        "file": "p.yaml",
        "version": None,
        "findings": [{"severity": "error", "path": "rulez", "line": 1, "message": "is unknown; did you mean 'rules'?"}],
    }


def test_strict_counts_warnings(here: Path) -> None:
    (here / "p.yaml").write_text("default: {shadow_percentage: 5}\n")
    assert policy("check", "p.yaml").exit_code == 0
    assert policy("check", "p.yaml", "--strict").exit_code == 1


@pytest.mark.parametrize("arguments", [["check", "none.yaml"], ["diff", "none.yaml", "none.yaml"]])
def test_a_file_that_is_not_there_is_status_2(arguments: list[str]) -> None:
    result = policy(*arguments)
    assert result.exit_code == 2
    assert "cannot be read" in result.stderr


def test_diff_shows_fields(here: Path) -> None:
    (here / "new.yaml").write_text(
        EXAMPLE.read_text().replace("num_speculative_tokens: 12", "num_speculative_tokens: 3")
    )
    result = policy("diff", EXAMPLE, "new.yaml", "--json")
    assert result.exit_code == 0
    [change] = json.loads(result.stdout)["changes"]
    assert (change["rule"], change["field"], change["old"], change["new"]) == ("json", "num_speculative_tokens", 12, 3)
    shown = policy("diff", EXAMPLE, "new.yaml", "--exit-code")
    assert shown.exit_code == 1
    assert "num_speculative_tokens" in shown.stdout
    same = policy("diff", EXAMPLE, EXAMPLE, "--exit-code")
    assert (same.exit_code, same.stdout.strip()) == (0, "no difference takes effect")


@pytest.mark.parametrize(
    ("flags", "body", "rule"),
    [
        ((), {}, "chat"),
        (("--tenant", "insurer-7"), {}, "regulated"),
        (("--role", "operator", "--header", "X-Canary: 1"), {}, "canary-off"),
        (("--header", "X-Canary: 1"), {}, "chat"),
        ((), {"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ((), {"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "none"}, "chat"),
        ((), {"response_format": {"type": "json_object"}}, "json"),
        ((), {"structured_outputs": {"json": {}}}, "json"),
        ((), {"structured_outputs": {"regex": "a"}}, "chat"),
        (("--prompt-tokens", "2000"), {}, "long-context"),
        (("--prompt-tokens", "1999"), {}, "chat"),
        (("--tier", "batch", "--at", "2026-11-20T23:30+01:00"), {}, "nightly-batch"),
        (("--tier", "batch", "--at", "2026-11-21T23:30+01:00"), {}, "chat"),
        (("--header", "Accept-Language: de-AT, en;q=0.5"), {"stream": True}, "private-streams"),
        ((), {"stream": True, "metadata": {"language": "fr"}}, "private-streams"),
    ],
)
def test_explain_finds_the_rule(flags: tuple[str, ...], body: dict[str, object], rule: str) -> None:
    assert explained(*flags, body=CHAT | body)["rule"] == rule


def test_explain_reads_every_shape_of_request() -> None:
    prompt = {"model": "m", "prompt": [[1, 2, 3]], "temperature": 0}
    document = explained(body=prompt)
    facts = document["facts"]
    assert isinstance(facts, dict)
    assert (document["rule"], facts["route"], facts["prompt_tokens"]) == ("code", "/v1/completions", 3)
    assert facts["max_tokens"] == 16
    assert explained(body={"model": "m", "input": "Hi"})["rule"] == "chat"


def test_explain_says_why_and_what() -> None:
    document = explained("--role", "operator", body=CHAT | {"speculation": {"max_depth": 4}, "tools": []})
    tried = document["rules"]
    assert isinstance(tried, list)
    assert tried[0] == {
        "rule": "regulated",
        "outcome": "no_match",
        "why": "tenant is default; asked: bank or insurer-*",
    }
    effect = document["in_effect"]
    assert isinstance(effect, dict)
    assert (effect["mode"], effect["num_speculative_tokens"]) == ("shadow", 4)
    assert effect["sources"]["num_speculative_tokens"] == "caller"

    shown = policy("explain", EXAMPLE, "--request", "-", "--tenant", "bank", stdin=json.dumps(CHAT))
    assert shown.exit_code == 0
    assert "in effect, by rule regulated" in shown.stdout


def test_explain_says_what_would_be_refused() -> None:
    asking = CHAT | {"speculation": {"mode": "always"}}
    needs_role = explained(body=asking)
    assert "role operator" in str(needs_role["refused"])
    assert needs_role["in_effect"] is None
    pinned = explained("--tenant", "bank", "--role", "operator", body=asking)
    assert "'regulated' pins it to off" in str(pinned["refused"])
    shown = policy("explain", EXAMPLE, "--request", "-", stdin=json.dumps(asking))
    assert "refused" in shown.stdout


def test_explain_asks_the_flags_that_rules_name(here: Path) -> None:
    (here / "p.yaml").write_text("rules: [{name: new, match: {flag: new-drafts}, mode: on}]")
    targeting = {"if": [{"==": [{"var": "tenant"}, "acme"]}, "on"]}
    write(here / "flags.json", also={"new-drafts": flag(targeting, default="off")})
    here_flags = ("--flags", "flags.json")
    mine = explained(*here_flags, "--tenant", "acme", file=here / "p.yaml")
    assert mine["rule"] == "new"
    [said] = cast(list[dict[str, object]], mine["flags"])
    assert (said["variant"], said["reason"], said["value"]) == ("on", "TARGETING_MATCH", True)
    theirs = explained(*here_flags, "--tenant", "other", file=here / "p.yaml")
    assert theirs["rule"] == "default"
    shown = policy("explain", "p.yaml", "--request", "-", *here_flags, stdin=json.dumps(CHAT))
    assert "flag is not given; asked: new-drafts" in shown.stdout
    assert "TARGETING_MATCH" in shown.stdout or "DEFAULT" in shown.stdout
    without = policy("explain", "p.yaml", "--request", "-", stdin=json.dumps(CHAT))
    assert "assumed to be false: new-drafts; --flags FILE evaluates them" in without.stderr


@pytest.mark.parametrize(
    ("flags", "body", "said"),
    [
        (("--at", "2026-11-20T23:30"), CHAT, "a date and time with its zone"),
        (("--at", "2026-11-20 at noon"), CHAT, "a date and time with its zone"),
        (("--header", "X"), CHAT, "'NAME: VALUE'"),
        (("--tier", "gold"), CHAT, "premium, standard, economy, batch"),
        (("--role", "root"), CHAT, "client, viewer, operator"),
        (("--route", "/v2"), CHAT, "/v1/completions"),
        ((), CHAT | {"n_predict": 1}, "use 'max_tokens'"),
        ((), {"model": "m", "messages": [], "speculation": {"proposer": "magic"}}, "messages"),
        ((), 3, "a mapping"),
    ],
)
def test_bad_input_is_status_2(flags: tuple[str, ...], body: object, said: str) -> None:
    result = policy("explain", EXAMPLE, "--request", "-", *flags, stdin=json.dumps(body))
    assert (result.exit_code, said in result.stderr) == (2, True), result.stderr


Policy = Callable[..., Result]


@pytest.fixture
def served_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Policy]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    configure_logs("error")  # the server runs in this process: its lines would be among the command's
    engine = FakeEngine()
    store = Store(opened(migrated_setting(tmp_path)), ItemWriter())
    with closing(store), served(engine, store=store) as running:
        yield lambda *words: CliRunner().invoke(app, ["policy", *words, "--url", running.url])


def test_from_apply_to_rollback(served_policy: Policy, tmp_path: Path) -> None:
    (tmp_path / "off.yaml").write_text("default: {mode: off}\n")
    (tmp_path / "on.yaml").write_text("default: {mode: on}\n")
    assert json.loads(served_policy("show", "--json").stdout)["version"] == 0
    first = served_policy("apply", "off.yaml", "--expect", "0", "--reason", "ticket 7")
    assert first.exit_code == 0, first.output
    second = json.loads(served_policy("apply", "on.yaml", "--json").stdout)
    assert second["version"] == 2
    assert served_policy("rollback", "1", "--expect", "2").exit_code == 0
    listed = json.loads(served_policy("show", "--versions", "--json").stdout)
    assert [(one["version"], one["reason"]) for one in listed["versions"]] == [
        (3, "rolled back to version 1"),
        (2, ""),
        (1, "ticket 7"),
    ]
    shown = served_policy("show", "--versions").stdout
    assert "ticket 7" in shown
    assert "in use" in shown
    assert served_policy("show", "2").stdout == "default: {mode: on}\n"
    assert json.loads(served_policy("show", "3", "--json").stdout)["text"] == "default: {mode: off}\n"
    assert "store" in served_policy("show").stdout


def test_refusals_are_shown(served_policy: Policy, tmp_path: Path) -> None:
    (tmp_path / "on.yaml").write_text("default: {mode: on}\n")
    (tmp_path / "bad.yaml").write_text("default: {mode: warp}\n")
    bad = served_policy("apply", "bad.yaml")
    assert bad.exit_code == 2
    assert "policy:1: default.mode is 'warp'" in bad.stderr
    assert served_policy("apply", "on.yaml").exit_code == 0
    late = served_policy("apply", "on.yaml", "--expect", "0")
    assert late.exit_code == 2
    assert "409: the policy in use is version 1 by developer, not version 0" in late.stderr
    assert "stored: 1 to 1" in served_policy("rollback", "5").stderr
    assert "cannot be read" in served_policy("apply", "none.yaml").stderr
