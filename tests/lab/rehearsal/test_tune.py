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
from prolepsis.lab.virtual_engine.machine import Machine, ProposerCost, RehearsedSettings
from prolepsis.server.cli.main import app
from tests.lab.rehearsal.test_rehearsal import CHECKED, MACHINE, line

TRACE = Trace(lines=tuple(line(0.1 * i, tenant=tenant, output=9) for i in range(20) for tenant in "ab"))
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
    assert tuning.num_requests == {"a": 20, "b": 20, "rare": 0, "default": 0, "settings of the engine": 40}
    assert {name: advised.mode for name, advised in tuning.advice.items()} == {
        "a": "off",
        "b": "on",
        "rare": "unknown",
        "settings of the engine": "off",
    }
    assert tuning.promise is not None
    gain = tuning.trials[0].latency_s / tuning.best.latency_s
    assert tuning.promise.startswith(f"{gain / 1.1:.2f} to {gain * 1.1:.2f}x as good in latency"), "its error is 10 %"


UNCHECKED = replace(MACHINE, checks={})
WRONG = replace(MACHINE, checks={"auto": replace(MACHINE.checks["auto"], errors=dict.fromkeys(CHECKED, 3.0))})


@pytest.mark.parametrize(
    ("machine", "num_requests", "missing"),
    [
        (UNCHECKED, 40, "no forecast of this machine with speculation was ever checked"),
        (WRONG, 40, r"the error of the forecast \(300 %\) is larger than the effect \(1\.\d+x\)"),
        (MACHINE, 38, "19 requests of 20"),
        (replace(MACHINE, measured_sequences=1), 40, r"passes of \d sequences, above 1, were not measured"),
    ],
)
def test_what_is_not_known_is_not_advised(machine: Machine, num_requests: int, missing: str) -> None:
    few = TRACE.scaled(most=num_requests)
    tuning = tune(few, RehearsedServer(machine=machine, policy=OFF), "latency", LatencyGoal())
    assert tuning.best is tuning.trials[0]
    assert tuning.promise is None
    assert tuning.advice["b"].mode == "unknown"
    assert re.fullmatch(missing, tuning.advice["b"].why)


def test_only_what_passes_were_measured_is_tried() -> None:
    tried = {
        most: [
            one.machine.engine.max_step_tokens
            for one in tune(
                SHORT, RehearsedServer(machine=replace(SMALL, measured_tokens=most)), "cost", LatencyGoal()
            ).trials
            if one.changed.startswith("max_step_tokens")
        ]
        for most in (64, 128, 1024)
    }
    assert tried == {64: [32], 128: [32, 128], 1024: [32, 128, 256]}


SHORT = Trace(lines=tuple(line(0.1 * i, output=2) for i in range(20)))
SMALL = replace(MACHINE, engine=RehearsedSettings(max_step_tokens=64))


def test_proposers_that_drafted_nothing_or_that_servers_lack_are_not_named() -> None:
    free, costly = ProposerCost(free=True), ProposerCost(level_ms=1.0)
    machine = replace(MACHINE, proposers={"synthetic": free, "suffix": free, "upstream": free, "draft_head": costly})
    both = tuple(replace(one, drafts={**one.drafts, "synthetic": one.drafts["suffix"]}) for one in TRACE.lines)
    setting = RehearsedServer(machine=machine, policy=OFF)
    tuning = tune(Trace(lines=both), setting, "latency", LatencyGoal())
    named = {dict(one.policy.named_terms())["b"].proposers for one in tuning.trials}
    assert named == {None, ("suffix",)}


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
    setting = RehearsedServer(machine=MACHINE, policy=before)
    assert tune(TRACE, setting, "latency", LatencyGoal()).best.policy == before, "the default was not asked for"
    tuning = tune(TRACE, setting, "latency", LatencyGoal(), with_default=True)
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
    within = LatencyGoal(per_token_s=0.02)
    tuning = tune(replace(TRACE, lines=wrong), RehearsedServer(machine=slow), goal, within, with_default=True)  # type: ignore[arg-type]
    assert tuning.best.worth(goal) >= tuning.trials[0].worth(goal)  # type: ignore[arg-type]
    assert "off" in {one.changed.removeprefix("default: ") for one in tuning.frontier} or goal != "latency"


def test_more_places_are_found_where_requests_wait_for_one() -> None:
    narrow = replace(MACHINE, engine=RehearsedSettings(max_requests=1))
    crowd = Trace(lines=tuple(line(0.0, drafts=False) for _ in range(20)))
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
    write_trace(tmp_path / "trace.jsonl", Trace(lines=tuple(line(0.1 * i, tenant="a", output=21) for i in range(20))))
    (tmp_path / "machine.json").write_text(MACHINE.to_json())
    (tmp_path / "unchecked.json").write_text(UNCHECKED.to_json())
    (tmp_path / "policy.yaml").write_text(POLICY)
    files = {"--machine": "machine.json", "--policy": "policy.yaml", "--output": "tuned.yaml"}
    given = [part for flag, name in files.items() for part in (flag, str(tmp_path / name))]
    return ["tune", str(tmp_path / "trace.jsonl"), *given]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "250"})


def test_it_writes_a_policy_that_can_be_used_and_says_what_changed(arguments: list[str], tmp_path: Path) -> None:
    result = run(*arguments)
    assert result.exit_code == 0
    shown = " ".join(result.stdout.split())
    assert "best for latency chat:" in shown
    assert "chat 20 on" in shown
    assert "default 0 not asked for (--default)" in shown
    assert re.search(r"promise (\S+) to (\S+)x as good in latency", shown)
    text = (tmp_path / "tuned.yaml").read_text()
    policy = usable_policy(text, "tuned.yaml", NOTHING_KNOWN)
    assert dict(policy.named_terms())["chat"].mode == "on"


def test_a_program_reads_the_frontier_and_a_status(arguments: list[str]) -> None:
    result = run(*arguments, "--json", "--exit-code", "--goal", "cost")
    assert result.exit_code == FAILED
    told = json.loads(result.stdout)
    assert told["goal"] == "cost"
    before, best = (
        next(trial for trial in told["frontier"] if trial["is"] == name) for name in ("as it is", "best for cost")
    )
    assert best["machine_s_per_million"] < before["machine_s_per_million"]
    assert usable_policy(told["policy"], "found", NOTHING_KNOWN).rules


def test_by_a_machine_that_was_never_checked_nothing_is_worth_it(arguments: list[str], tmp_path: Path) -> None:
    result = run(*arguments, "--machine", str(tmp_path / "unchecked.json"), "--exit-code")
    assert result.exit_code == 0
    assert "was ever checked" in result.stdout
    assert "best for" in result.stdout, "as it is"


def test_a_policy_whose_rules_match_nothing_is_said_to_be_so(arguments: list[str], tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(POLICY.replace("tenant: a", "tenant: z"))
    result = run(*arguments)
    assert "no rule matches any of 20 requests" in result.stderr
    assert "default 20 not asked for (--default)" in " ".join(result.stdout.split())
    assert "flags of serve" in result.stdout


def test_an_unknown_goal_is_refused_by_name(arguments: list[str]) -> None:
    result = run(*arguments, "--goal", "speed")
    assert result.exit_code == BAD_INPUT
    assert all(name in result.stderr for name in ("speed", "latency", "cost", "goodput"))
