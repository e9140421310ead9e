"""Every alert fires for the harm that it is for, and stays silent otherwise: evaluated by promtool."""

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest
import yaml

from prolepsis.ops.monitoring.burn_rates import Group, Rule, burn_rate_groups
from prolepsis.ops.monitoring.files import (
    RUNBOOK_URL,
    alert_groups,
    monitoring_files,
    shipped,
    with_runbooks,
    write_monitoring,
)
from prolepsis.ops.monitoring.objectives import parse_objectives
from tests.ops.monitoring.rules import all_rules

PROMTOOL, AMTOOL = shutil.which("promtool"), shutil.which("amtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="promtool is missing: apt-get install prometheus")
OBJECTIVES = parse_objectives(shipped("slos.yaml"), "slos.yaml")
GROUPS = with_runbooks([*alert_groups(), *burn_rate_groups(OBJECTIVES)], RUNBOOK_URL)
RULES = list(all_rules(GROUPS))


@dataclass(frozen=True)
class Case:
    """Series in promtool's notation, and the labels of the alerts of a name that fire at a minute."""

    alert: str
    series: dict[str, str]
    at: int
    firing: tuple[dict[str, str], ...] = ({},)
    every: str = "1m"


def ratio(bad: str, total: str, share: float, samples: int = 90) -> dict[str, str]:
    """Return two counters of which the first counts `share` of the events of the second."""
    return {bad: f"0+{100 * share:g}x{samples}", total: f"0+100x{samples}"}


def fell_and_rose(part: str, whole: str) -> dict[str, str]:
    """Return two counters of which the first counts a tenth of the second for 90 samples, and then half of it."""
    return {part: "0+10x90 950+50x30", whole: "0+100x120"}


def buckets(name: str, le: str, good: float, tier: str = "standard") -> dict[str, str]:
    of = f'tier="{tier}", outcome="finished"'
    return {f"{name}_count{{{of}}}": "0+100x90", f'{name}_bucket{{{of}, le="{le}"}}': f"0+{100 * good:g}x90"}


DONE, FAILED = 'prolepsis_requests_total{outcome="finished"}', 'prolepsis_requests_total{outcome="failed"}'
MATCH = 'prolepsis_replays_total{outcome="match"}'
STRUCTURAL = 'prolepsis_replays_total{outcome="structural"}'
SIMILARITY = "prolepsis_replay_similarity_total"
OF = 'proposer="draft_head", traffic_class="a/b/free/short"'
DRAFTED, ACCEPTED = (f"prolepsis_spec_decode_num_{what}_tokens_total{{{OF}}}" for what in ("draft", "accepted"))
DRAFTS = f"prolepsis_spec_decode_num_drafts_total{{{OF}}}"
FIRST_FAILED = f"prolepsis_spec_decode_num_first_token_failures_total{{{OF}}}"
DEVICE, PRICE = 'prolepsis_device_seconds_total{kind="plain"}', "prolepsis_price_per_device_second"
WASTED = "prolepsis_spec_decode_correction_seconds_total"
TOKENS = "prolepsis_generation_tokens_total"
READY = 'prolepsis_engine_ready{instance="a"}'
LOOPING = 'prolepsis_quality_alarms_total{kind="looping", tier="standard"}'
WEEK = 7 * 24 * 2
"""Samples in a week at one in half an hour."""
DAY = 24 * 2
"""Samples in a day, likewise."""
PAGE, TICKET = {"severity": "page"}, {"severity": "ticket"}
HEAD = {"proposer": "draft_head", "traffic_class": "a/b/free/short"}

BUDGETS = [
    Case("AvailabilityBudgetBurns", ratio(FAILED, DONE, 0.05), 120, (PAGE, TICKET)),
    Case("AvailabilityBudgetBurns", ratio(FAILED, DONE, 0.004), 120, (TICKET,)),
    Case("AvailabilityBudgetBurns", {FAILED: "0+1x60", DONE: "0x60"}, 30, ()),  # 15 events are too few
    Case("AvailabilityBudgetBurns", {DONE: "0+100x60"}, 120, ()),
    *(
        Case("AvailabilityBudgetBurns", ratio(f'prolepsis_requests_total{{outcome="{end}"}}', DONE, 0.5), 120, ())
        for end in ("expired", "left", "refused")  # by what their clients did
    ),
    Case("FirstTokenBudgetBurns", buckets("prolepsis_time_to_first_token_seconds", "2.5", 0.7), 120, (PAGE, TICKET)),
    Case("FirstTokenBudgetBurns", buckets("prolepsis_time_to_first_token_seconds", "2.5", 0.995), 120, ()),
    Case(
        "TokenLatencyBudgetBurns",
        buckets("prolepsis_request_time_per_output_token_seconds", "0.05", 0.8),
        120,
        (PAGE, TICKET),
    ),
    *(
        Case(f"{name}BudgetBurns", buckets(f"prolepsis_{series}_seconds", le, 0.0, "background"), 120, ())
        for name, series, le in (
            ("FirstToken", "time_to_first_token", "2.5"),
            ("TokenLatency", "request_time_per_output_token", "0.05"),
        )
    ),
    Case("CorrectnessBudgetBurns", ratio(STRUCTURAL, MATCH, 0.05), 120, (PAGE, TICKET)),
    Case("CorrectionBudgetBurns", ratio(WASTED, DEVICE, 0.5), 150, (TICKET,)),
    Case("CorrectionBudgetBurns", ratio(WASTED, DEVICE, 0.1), 150, ()),
    Case("CorrectionBudgetBurns", {WASTED: "0+2x60", DEVICE: "0+4x60"}, 30, ()),  # of two minutes
    Case("AcceptanceFloorBudgetBurns", ratio(ACCEPTED, DRAFTED, 0.1), 150, (TICKET,)),
    Case("AcceptanceFloorBudgetBurns", ratio(ACCEPTED, DRAFTED, 0.5), 150, ()),
    Case("AcceptanceFloorBudgetBurns", ratio(ACCEPTED, DRAFTED, 0.1, 30), 45, ()),  # of half an hour
    Case("AcceptanceFloorBudgetBurns", fell_and_rose(ACCEPTED, DRAFTED), 200, ()),
    Case("CostBudgetBurns", {DEVICE: "0+60x90", TOKENS: "0+1000x90", PRICE: "0.001x90"}, 150, (TICKET,)),
    Case("CostBudgetBurns", {DEVICE: "0+60x90", TOKENS: "0+60000x90", PRICE: "0.001x90"}, 150, ()),
    Case("CostBudgetBurns", {DEVICE: "0+60x30", TOKENS: "0+1000x30", PRICE: "0.001x30"}, 45, ()),  # of half an hour
    Case("CostBudgetBurns", {DEVICE: "0+60x90", TOKENS: "0+100x90", PRICE: "0.001x90"}, 150, ()),  # hardly any traffic
    Case(  # its traffic ended, and its budget burns on for hours
        "CostBudgetBurns", {DEVICE: "0+60x90 5400x30", TOKENS: "0+1000x90 90000x30", PRICE: "0.001x120"}, 220, ()
    ),
    Case(  # its cause ended, likewise
        "CostBudgetBurns", {DEVICE: "0+60x120", TOKENS: "0+1000x90 150000+60000x30", PRICE: "0.001x120"}, 220, ()
    ),
]
POOL = 'prolepsis_upstream_up{instance="a", pool="plain"}'
GPU = 'instance="a", device="0"'
RESTARTS = 'prolepsis_engine_restarts_total{instance="a", result="started"}'
OTHERS = [
    Case("OutputsDiffer", {STRUCTURAL: "0x10 1x30"}, 15),
    Case("OutputsDiffer", {STRUCTURAL: "0x40", MATCH: "0+1x40"}, 15, ()),
    Case("OutputsDissimilar", {SIMILARITY: "0+0.5x60", MATCH: "0+1x60"}, 50),
    Case("OutputsDissimilar", {SIMILARITY: "0+0.5x60", MATCH: "0+1x60"}, 15, ()),  # 15 replays are too few
    Case("OutputsDissimilar", {SIMILARITY: "0+0.9x60", MATCH: "0+1x60"}, 50, ()),
    Case("AcceptanceCliff", {f'prolepsis_drift_status{{{OF}, status="cliff"}}': "0x5 1x10"}, 10, (HEAD,)),
    Case("AnswersOutOfNorm", {LOOPING: "0+1x60", DONE: "0+20x60"}, 30, ({"kind": "looping"},)),
    Case("AnswersOutOfNorm", {LOOPING: "0+1x60", DONE: "0+200x60"}, 30, ()),  # one in 200
    Case("AnswersOutOfNorm", {LOOPING: "0+1x3", DONE: "0+20x60"}, 30, ()),  # three
    Case("AcceptanceDrift", {f'prolepsis_drift_status{{{OF}, status="drifted"}}': "1x20"}, 10, (HEAD,)),
    Case(
        "AcceptanceDrift",
        {'prolepsis_drift_status{instance="a", traffic_class="a/b/free/short/code.v2", status="drifted"}': "1x20"},
        10,
        ({"instance": "a", "rule": "code.v2", "traffic_class": "a/b/free/short/code.v2"},),
    ),
    Case(
        "AcceptanceBelowWeekly",
        {ACCEPTED: f"0+300x{WEEK} {300 * WEEK}+100x6", DRAFTED: f"0+500x{WEEK + 6}", DRAFTS: f"0+800x{WEEK + 6}"},
        (WEEK + 4) * 30,
        every="30m",
    ),
    Case(
        "AcceptanceBelowWeekly",
        {ACCEPTED: f"0+300x{WEEK + 6}", DRAFTED: f"0+500x{WEEK + 6}", DRAFTS: f"0+800x{WEEK + 6}"},
        (WEEK + 4) * 30,
        (),
        every="30m",
    ),
    Case(
        "CorrectionsAboveWeekly",
        {FIRST_FAILED: f"0+240x{WEEK} {240 * WEEK}+480x6", DRAFTS: f"0+800x{WEEK + 6}"},
        (WEEK + 4) * 30,
        every="30m",
    ),
    Case("ServerDown", {'up{job="prolepsis", instance="a"}': "1x5 0x5"}, 8, ({"instance": "a"},)),
    Case("RequestsFail", {'prolepsis_requests_failing{instance="a"}': "0x2 1x4"}, 5, ({"instance": "a"},)),
    Case("RequestsFail", {'prolepsis_requests_failing{instance="a"}': "0x2 1 0x4"}, 5, ()),
    Case("EngineStuck", {READY: "1x6 0x8"}, 3, ({"instance": "a"},), every="15s"),
    Case("EngineStuck", {READY: "1x16"}, 3, (), every="15s"),
    Case("EngineStuck", {READY: "1x6 0x3 1x8"}, 3, (), every="15s"),  # one that restarts
    Case("EngineStuck", {READY: "1x6 0x2 1 0x2 1 0x2"}, 4, ({"instance": "a"},), every="15s"),  # again and again
    Case("EngineRestarted", {RESTARTS: "0x4 1x4"}, 6, ({"instance": "a"},)),
    Case("EngineRestarted", {RESTARTS: "1x8"}, 6, ()),
    Case("UpstreamPoolDown", {POOL: "1x5 0x8"}, 9, ({"instance": "a", "pool": "plain"},)),
    Case("UpstreamPoolDown", {POOL: "1x14"}, 9, ()),
    Case("KilledForMemory", {'prolepsis_memory_kills_total{instance="a"}': "0x4 1x4"}, 6, ({"instance": "a"},)),
    Case("KilledForMemory", {'prolepsis_memory_kills_total{instance="a"}': "1x8"}, 6, ()),
    Case("CpuThrottled", {'prolepsis_cpu_throttled_seconds_total{instance="a"}': "0+60x30"}, 25, ({"instance": "a"},)),
    Case("CpuThrottled", {'prolepsis_cpu_throttled_seconds_total{instance="a"}': "0+6x30"}, 25, ()),
    Case("GpuThrottled", {f"prolepsis_device_throttled{{{GPU}}}": "1x30"}, 25, ({"instance": "a", "device": "0"},)),
    Case("GpuThrottled", {f"prolepsis_device_throttled{{{GPU}}}": "0 0 1 0 0 0 0 0x30"}, 25, ()),  # for a moment
    Case("TrafficLost", {TOKENS: f"0+30000x{WEEK} {30000 * WEEK}x6"}, (WEEK + 4) * 30, every="30m"),
    Case("Saturated", {'prolepsis_shed_level{instance="a"}': "2x10"}, 8, ({"instance": "a"},)),
    Case("QueueGrows", {'prolepsis_admission_queue_age_seconds{instance="a"}': "9x10"}, 8, ({"instance": "a"},)),
    Case("KillSwitchOn", {'prolepsis_speculation_killed{source="file"}': "0x3 1x3"}, 5, ({"source": "file"},)),
    Case(
        "KillSwitchOn",  # it mutes what a region reports, and the others there still draft
        {
            'prolepsis_speculation_killed{source="file", instance="a"}': "1x6",
            'prolepsis_speculation_killed{source="file", instance="b"}': "0x6",
        },
        5,
        (),
    ),
    Case(
        "KillSwitchOn", {'prolepsis_speculation_killed{source="file", instance="a"}': "1x6"}, 5, ({"source": "file"},)
    ),
    Case(
        "ServerNotSpeculating",
        {
            'prolepsis_speculation_killed{source="file", instance="a"}': "1x9",
            'prolepsis_speculation_killed{source="file", instance="b"}': "0x9",
        },
        8,
        ({"instance": "a", "source": "file"},),
    ),
    Case(
        "ServerNotSpeculating",  # all of them: that is `KillSwitchOn`
        {
            'prolepsis_speculation_killed{source="file", instance="a"}': "1x9",
            'prolepsis_speculation_killed{source="flag", instance="b"}': "1x9",
        },
        8,
        (),
    ),
    Case("BreakerOpen", {f'prolepsis_breaker_state{{{OF}, state="open"}}': "1x5"}, 4, (HEAD,)),
    Case("BreakerOpen", {f'prolepsis_breaker_state{{{OF}, state="closed"}}': "1x5"}, 4, ()),
    Case(
        "ProposerFails",
        {'prolepsis_spec_decode_proposer_failures_total{proposer="suffix"}': "0x3 1x3"},
        5,
        ({"proposer": "suffix"},),
    ),
    Case("LogitsNotFinite", {'prolepsis_not_finite_failures_total{instance="a"}': "0x3 1x3"}, 5, ({"instance": "a"},)),
    Case("LogitsNotFinite", {'prolepsis_not_finite_failures_total{instance="a"}': "7x9"}, 5, ()),
    Case(
        "FaultsContained",
        {'prolepsis_contained_faults_total{instance="a", kind="decisions"}': "0x3 1x3"},
        5,
        ({"instance": "a", "kind": "decisions"},),
    ),
    Case(
        "RolloutRolledBack",
        {'prolepsis_rollout_changes_total{rule="chat", kind="rolled_back"}': "0x3 1x3"},
        5,
        ({"rule": "chat"},),
    ),
    Case("RolloutRolledBack", {'prolepsis_rollout_changes_total{rule="chat", kind="promoted"}': "0x3 1x3"}, 5, ()),
    Case(
        "SpeculationShouldStop",
        {'prolepsis_rule_verdict{rule="chat", verdict="stop: it costs more than it brings"}': "1x15"},
        12,
        ({"rule": "chat", "verdict": "stop: it costs more than it brings"},),
    ),
    Case("SpeculationShouldStop", {'prolepsis_rule_verdict{rule="chat", verdict="keep: it pays"}': "1x15"}, 12, ()),
    Case("BenefitGone", {f"prolepsis_drift_benefit_gone{{{OF}}}": "0x3 1x3"}, 5, (HEAD,)),
    Case("BenefitGone", {f"prolepsis_drift_benefit_gone{{{OF}}}": "1x3 0x3"}, 5, ()),
    Case("StoreDown", {'prolepsis_store_up{instance="a"}': "1 0x5"}, 5, ({"instance": "a"},)),
    Case(
        "RecordsLost",
        {'prolepsis_store_dropped_total{kind="audit", reason="queue_full"}': "0x3 5x3"},
        5,
        ({"kind": "audit", "reason": "queue_full"},),
    ),
    Case("AuditChainBroken", {'prolepsis_audit_chain_broken{instance="a"}': "0 1x5"}, 3, ({"instance": "a"},)),
    Case("AuditNotAnchored", {'prolepsis_audit_anchor_failures_total{place="log"}': "0x3 1x3"}, 5, ({"place": "log"},)),
    Case("SpendAboveDay", {DEVICE: "0+1800x20", PRICE: "0.01x20"}, 300, every="30m"),
    Case("SpendAboveDay", {DEVICE: "0+1800x20", PRICE: "0.001x20"}, 300, (), every="30m"),
    Case("SpendAboveDay", {DEVICE: "0+1800x20", PRICE: "0.01x4 stale 0.01x15"}, 300, every="30m"),  # a restart
    Case("SpendAboveDay", {DEVICE: "0+1800x2", PRICE: "0.01x2"}, 60, (), every="30m"),  # 36 in its first hour
    Case("SpendForecast", {DEVICE: f"0+1800x{3 * DAY}", PRICE: f"0.01x{3 * DAY}"}, 3 * DAY * 30, every="30m"),
    Case(
        "SpendForecast",  # the first two days of a server are no trend
        {DEVICE: "0+36x8 288+900x84", PRICE: "0.01x92"},
        46 * 60,
        (),
        every="30m",
    ),
]


def test_every_alert_has_a_case_that_fires() -> None:
    alerts = {rule["alert"] for rule in RULES if "alert" in rule}
    assert {case.alert for case in [*BUDGETS, *OTHERS] if case.firing} == alerts


def _groups_of(alert: str) -> Iterator[Group]:
    """Yield the groups with the rules that an alert is computed from: to evaluate all for each takes many seconds."""
    kept = [rule for rule in RULES if rule.get("alert") == alert]
    for rule in kept:  # the list grows meanwhile
        kept += [other for other in RULES if other not in kept and _feeds(other, str(rule["expr"]))]
    for group in GROUPS:
        if rules := [rule for rule in all_rules([group]) if rule in kept]:
            yield {**group, "rules": rules}


def _feeds(rule: Rule, expression: str) -> bool:
    """Return whether a rule records what an expression reads; all objectives record under the same names."""
    if "record" not in rule:
        return False
    labels = cast(Mapping[str, str], rule.get("labels", {}))
    return re.search(rf"\b{rule['record']}\b", expression) is not None and labels.get("sloth_id", "") in expression


@needs_promtool
@pytest.mark.parametrize(
    ("cases", "every"),
    [
        pytest.param(BUDGETS, "2m", id="budgets"),
        *(
            pytest.param([case for case in OTHERS if case.every == every], every, id=every)
            for every in sorted({case.every for case in OTHERS})
        ),
    ],
)
def test_alerts_fire_for_what_they_are_for(cases: list[Case], every: str, tmp_path: Path) -> None:
    labels = {str(rule["alert"]): rule["labels"] for rule in all_rules(alert_groups()) if "alert" in rule}
    for alert in {case.alert for case in cases}:
        groups = list(_groups_of(alert))
        document = {
            "rule_files": [f"{alert}.rules.yaml"],
            "evaluation_interval": every,
            "group_eval_order": [group["name"] for group in groups],
            "tests": [_test(case, every, labels.get(alert, {})) for case in cases if case.alert == alert],
        }
        (tmp_path / f"{alert}.rules.yaml").write_text(yaml.safe_dump({"groups": groups}))
        (tmp_path / f"{alert}.test.yaml").write_text(yaml.safe_dump(document))
    assert PROMTOOL is not None
    _succeeds(tmp_path, PROMTOOL, "test", "rules", *sorted(file.name for file in tmp_path.glob("*.test.yaml")))


def _succeeds(folder: Path, *command: str) -> None:
    done = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def _test(case: Case, every: str, labels: object) -> dict[str, object]:
    """Return promtool's test: which alerts of a name fire, told by the labels that tell them apart."""
    kept = sorted({"severity"} | {name for one in case.firing for name in one})
    expected = [{"severity": "", **_plain(labels), **one} for one in case.firing]
    return {
        "interval": every,
        "name": f"{case.alert} {'fires' if case.firing else 'is silent'}",
        "input_series": [{"series": series, "values": values} for series, values in case.series.items()],
        "promql_expr_test": [
            {
                "expr": f'count by ({", ".join(kept)}) (ALERTS{{alertname="{case.alert}", alertstate="firing"}})',
                "eval_time": f"{case.at}m",
                "exp_samples": [
                    {"labels": "{" + ", ".join(f'{name}="{one[name]}"' for name in kept) + "}", "value": 1}
                    for one in expected
                ],
            }
        ],
    }


def _plain(labels: object) -> dict[str, str]:
    assert isinstance(labels, dict)
    return {str(name): str(value) for name, value in labels.items()}


@needs_promtool
def test_the_files_are_what_prometheus_reads(tmp_path: Path) -> None:
    write_monitoring(tmp_path, monitoring_files(OBJECTIVES, RUNBOOK_URL))
    assert PROMTOOL is not None
    _succeeds(tmp_path, PROMTOOL, "check", "config", "--lint=all", "--lint-fatal", "prometheus.yaml")


@pytest.mark.skipif(AMTOOL is None, reason="amtool is missing: apt-get install prometheus-alertmanager")
def test_the_file_is_what_alertmanager_reads(tmp_path: Path) -> None:
    write_monitoring(tmp_path, monitoring_files(OBJECTIVES, RUNBOOK_URL))
    assert AMTOOL is not None
    _succeeds(tmp_path, AMTOOL, "check-config", "alertmanager.yaml")


def test_an_alert_of_one_server_or_proposer_mutes_only_its_own() -> None:
    expressions = {str(rule["alert"]): str(rule["expr"]) for rule in all_rules(alert_groups()) if "alert" in rule}
    per = {
        name: set(found[1].split(", ")) if (found := re.search(r"\bby \(([^)]*)\)", text)) else set()
        for name, text in expressions.items()
    }
    per["ServerDown"] = {"instance"}
    for rule in yaml.safe_load(shipped("alertmanager.yaml"))["inhibit_rules"]:
        pattern = re.fullmatch(r'alertname=~?"(.*)"', rule["source_matchers"][0])
        for source in pattern[1].split("|") if pattern else ():
            assert per[source] & {"instance", "proposer", "traffic_class"} <= set(rule["equal"]), source
