"""Objectives as people write them: what is refused, and the rules that follow."""

from typing import Any

import pytest
import yaml

from prolepsis.ops.monitoring.burn_rates import WINDOWS, burn_rate_groups
from prolepsis.ops.monitoring.objectives import InvalidObjectives, parse_objectives
from tests.ops.monitoring.rules import all_rules


def document(**changes: Any) -> dict[str, Any]:
    slo: dict[str, Any] = {
        "name": "availability",
        "description": "Requests end well.",
        "objective": 99.9,
        "sli": {"events": {"error_query": "rate(bad[{{.window}}])", "total_query": "rate(all[{{.window}}])"}},
        "alerting": {"name": "Burns", "annotations": {"runbook": "availability"}},
    }
    return {"version": "prometheus/v1", "service": "prolepsis", "slos": [{**slo, **changes}]}


def rules_of(**changes: Any) -> list[dict[str, object]]:
    return list(all_rules(burn_rate_groups(parse_objectives(yaml.safe_dump(document(**changes)), "slos.yaml"))))


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"objective": 100}, "objective"),
        ({"name": "Availability!"}, "allowed: 1 to 63 lower-case letters"),
        ({"sli": {}}, "allowed: events or raw, one of them"),
        ({"sli": {"raw": {"error_ratio_query": "up"}}}, r"allowed: a query with \[\{\{.window\}\}\]"),
        ({"alerting": {"name": "burns"}}, "allowed: letters and digits, the first a capital"),
        (
            {
                "sli": {"raw": {"error_ratio_query": "x[{{.window}}]"}},
                "alerting": {"name": "Burns", "minimum_events": 5},
            },
            "minimum_events needs sli.events",
        ),
        ({"period": "28d"}, "period"),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, Any], what: str) -> None:
    with pytest.raises(InvalidObjectives, match=what):
        rules_of(**changes)


def test_two_objectives_of_a_name_are_refused() -> None:
    twice = document()
    twice["slos"] *= 2
    with pytest.raises(InvalidObjectives, match="twice: availability"):
        parse_objectives(yaml.safe_dump(twice), "slos.yaml")


def test_ratios_are_recorded_for_each_window_under_sloths_names() -> None:
    recorded = {rule["record"]: rule for rule in rules_of() if "record" in rule}
    for window in WINDOWS:
        rule = recorded[f"slo:sli_error:ratio_rate{window}"]
        assert f"rate(all[{window}])" in str(rule["expr"])
        assert rule["labels"] == {
            "sloth_service": "prolepsis",
            "sloth_slo": "availability",
            "sloth_id": "prolepsis-availability",
            "sloth_window": window,
        }
    assert recorded["slo:error_budget:ratio"]["expr"] == "vector(0.001)"
    assert recorded["slo:objective:ratio"]["expr"] == "vector(0.999)"
    assert {
        "slo:current_burn_rate:ratio",
        "slo:period_error_budget_remaining:ratio",
        "sloth_slo_info",
    } <= recorded.keys()


def test_a_budget_that_cannot_burn_so_fast_has_no_alert_for_it() -> None:
    severities = [rule["labels"] for rule in rules_of(objective=80) if "alert" in rule]
    assert severities == [{"severity": "ticket"}]  # 14.4 and 6 times 20 % are more than all
    (ticket,) = (rule for rule in rules_of(objective=80) if "alert" in rule)
    assert "(3 * 0.2)" in str(ticket["expr"])


def test_few_events_are_not_evidence() -> None:
    alerting = {"name": "Burns", "annotations": {"runbook": "availability"}, "minimum_events": 50}
    rules = rules_of(alerting=alerting)
    numbers = [rule for rule in rules if str(rule.get("record", "")).startswith("slo:sli_events:increase")]
    assert numbers[0]["expr"] == "(rate(all[1h])) * 3600"
    assert all("slo:sli_events:increase" in str(rule["expr"]) for rule in rules if "alert" in rule)


def test_an_alert_can_be_left_out() -> None:
    alerting = {"name": "Burns", "annotations": {"runbook": "x"}, "page_alert": {"disable": True}}
    assert [rule["labels"] for rule in rules_of(alerting=alerting) if "alert" in rule] == [{"severity": "ticket"}]
