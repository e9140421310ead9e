"""A policy is tuned in rehearsals, and what is found goes through a rollout."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from prolepsis.control.policy.check import NOTHING_KNOWN, check, usable_policy
from prolepsis.control.policy.model import Policy
from prolepsis.core.terminal.output import BAD_INPUT, FAILED
from prolepsis.engine.drafting.cost import flat_cost
from prolepsis.lab.measure.arrivals import LatencyGoal
from prolepsis.lab.rehearsal.rehearsal import RehearsedServer
from prolepsis.lab.rehearsal.trace import Trace, write_trace
from prolepsis.lab.rehearsal.tune import rolled_out, tune
from prolepsis.lab.virtual_engine.machine import RehearsedSettings
from prolepsis.server.cli.main import app
from tests.lab.rehearsal.test_rehearsal import MACHINE, line

TRACE = Trace(lines=(line(0.0, tenant="a"), line(0.0, tenant="b"), line(0.1, tenant="b")))
OFF = Policy.model_validate(
    {
        "default": {"mode": "off"},
        "rules": [
            {"name": "a", "match": {"tenant": "a"}, "mode": "off", "pinned": True},
            {"name": "b", "match": {"tenant": "b"}, "mode": "off"},
            {"name": "rare", "match": {"tenant": "c"}, "mode": "off"},
        ],
    }
)


def test_drafts_that_are_right_are_turned_on_but_not_where_a_rule_is_pinned() -> None:
    tuning = tune(TRACE, RehearsedServer(machine=MACHINE, policy=OFF), "latency", LatencyGoal())
    modes = {name: terms.mode for name, terms in tuning.best.policy.named_terms()}
    assert modes == {"a": "off", "b": "on", "rare": "off", "default": "off"}
    assert tuning.best.latency_s < tuning.trials[0].latency_s
    assert not any(one.changed.startswith(("a:", "rare:", "default:")) for one in tuning.trials)


def test_what_is_found_goes_through_a_rollout() -> None:
    tuning = tune(TRACE, RehearsedServer(machine=MACHINE, policy=OFF), "latency", LatencyGoal())
    policy = rolled_out(OFF, tuning.best.policy)
    terms = dict(policy.named_terms())
    assert terms["b"].rollout is not None
    assert terms["b"].rollout.against is None, "it is compared with plain decoding"
    assert [one.metric for one in terms["b"].guardrails] == ["latency_p95_ms", "error_rate"]
    assert terms["a"].rollout is terms["default"].rollout is None
    assert not [one for one in check(policy) if one.severity == "error"]


def test_other_drafts_are_compared_with_those_before() -> None:
    before = Policy.model_validate({"default": {"mode": "on", "num_speculative_tokens": 1}})
    tuning = tune(TRACE, RehearsedServer(machine=MACHINE, policy=before), "latency", LatencyGoal())
    terms = rolled_out(before, tuning.best.policy).default_terms
    assert terms.num_speculative_tokens != 1
    assert terms.rollout is not None
    assert terms.rollout.against is not None
    assert terms.rollout.against.changes == {"num_speculative_tokens": 1}


@pytest.mark.parametrize("goal", ["latency", "cost", "goodput"])
def test_drafts_that_cost_more_than_they_bring_are_turned_off(goal: str) -> None:
    wrong = tuple(
        replace(one, drafts={"suffix": tuple(draft._replace(path=()) for draft in one.drafts["suffix"])})
        for one in TRACE.lines
    )
    slow = replace(MACHINE, passes=flat_cost(10.0, 8.0))  # and the engine expects drafts to cost nothing
    tuning = tune(replace(TRACE, lines=wrong), RehearsedServer(machine=slow), goal, LatencyGoal(per_token_s=0.02))  # type: ignore[arg-type]
    assert tuning.best.worth(goal) >= tuning.trials[0].worth(goal)  # type: ignore[arg-type]
    assert "off" in {one.changed.removeprefix("default: ") for one in tuning.frontier} or goal != "latency"


def test_more_places_are_found_where_requests_wait_for_one() -> None:
    narrow = replace(MACHINE, engine=RehearsedSettings(max_requests=1))
    crowd = Trace(lines=tuple(line(0.0, drafts=False) for _ in range(4)))
    tuning = tune(crowd, RehearsedServer(machine=narrow), "latency", LatencyGoal())
    assert tuning.settings["max_requests"] == 2


def test_the_frontier_has_no_trial_that_another_one_beats() -> None:
    tuning = tune(TRACE, RehearsedServer(machine=MACHINE, policy=OFF), "cost", LatencyGoal())
    for one in tuning.frontier:
        assert not any(
            other.latency_s < one.latency_s and other.machine_s_per_million < one.machine_s_per_million
            for other in tuning.trials
        )


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
