"""Dashboards and rules: what is committed is what is written, and every query is of series that exist."""

import re
from collections.abc import Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import promql_parser
import pytest

from prolepsis.ops.monitoring.burn_rates import burn_rate_groups
from prolepsis.ops.monitoring.files import RUNBOOK_URL, alert_groups, dashboards, filled, monitoring_files, shipped
from prolepsis.ops.monitoring.objectives import parse_objectives
from tests.core.telemetry.servers import server_with_everything
from tests.ops.monitoring.rules import all_rules
from tests.paths import ROOT

COMMITTED = ROOT / "monitoring"
OBJECTIVES = parse_objectives(shipped("slos.yaml"), "slos.yaml")
RULES = list(all_rules([*alert_groups(), *burn_rate_groups(OBJECTIVES)]))
RECORDED = {str(rule["record"]) for rule in RULES if "record" in rule}
OTHERS = {"up", "ALERTS", "process_resident_memory_bytes"}
"""Series of Prometheus and of its client library."""
SHARED = ("schemaVersion", "templating", "annotations", "refresh", "time", "tags")
KINDS = {"row", "timeseries", "stat", "table", "state-timeline", "heatmap"}


def expressions() -> Iterator[str]:
    for dashboard in dashboards():
        yield from (target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ()))
        yield from (annotation["expr"] for annotation in dashboard["annotations"]["list"])
    yield from (str(rule["expr"]) for rule in RULES)


def parts(dashboard: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield what names a source of data: panels and their queries."""
    for panel in dashboard["panels"]:
        if panel["type"] != "row":
            yield from (panel, *panel["targets"])


def test_committed_rules_are_the_generated_ones() -> None:
    files = {**monitoring_files(OBJECTIVES, RUNBOOK_URL), "slos.yaml": shipped("slos.yaml")}
    committed = {str(file.relative_to(COMMITTED)): file.read_text() for file in COMMITTED.rglob("*") if file.is_file()}
    assert committed.keys() == {name for name in files if not name.startswith("dashboards/")}
    for name, content in committed.items():
        assert content == files[name], f"{name}: run `prolepsis monitoring monitoring`"


def test_every_expression_is_promql() -> None:
    for expression in expressions():
        promql_parser.parse(filled(expression, "5m"))


def test_every_series_is_exported_or_recorded(tmp_path: Path) -> None:
    with server_with_everything(tmp_path) as (_, metrics):
        exported = set(metrics.registry.families)
    known = exported | RECORDED | OTHERS
    variables = [str(variable["query"]) for board in dashboards() for variable in board["templating"]["list"]]
    asked = [*expressions(), *variables]
    names = {name for one in asked for name in re.findall(r"\b(?:prolepsis[_:][\w:]+|slo:[\w:]+)", one)}
    unknown = {name for name in names if name not in known and re.sub("_(bucket|sum|count)$", "", name) not in exported}
    assert unknown == set()


@pytest.mark.parametrize(
    ("uid", "series"),
    [
        (
            "executive",
            "device_seconds_total price_per_device_second spend:rate1h generation_tokens_total acceptance:ratio_rate1h "
            "requests_effective_total slo:period_error_budget_remaining:ratio",
        ),
        (
            "on-call",
            "time_to_first_token_seconds_bucket e2e_request_latency_seconds_bucket admission_queued_requests "
            "spec_decode_num_accepted_tokens_total spec_decode_correction_seconds_total requests_total "
            "request_timeouts_total device_utilization_ratio device_throttled device_memory_used_bytes",
        ),
        (
            "debug",
            "spec_decode_draft_depth_tokens_bucket replays_total traces_total traces_lost_total band_tokens_total "
            "request_acceptance_ratio_bucket admission_samples_in_engine cpu_throttled_seconds_total "
            "device_memory_used_bytes",
        ),
    ],
)
def test_what_each_dashboard_is_for_has_a_panel(uid: str, series: str) -> None:
    [board] = [board for board in dashboards() if board["uid"] == f"prolepsis-{uid}"]
    queries = " ".join(target["expr"] for panel in board["panels"] for target in panel.get("targets", ()))
    assert [name for name in series.split() if not re.search(rf"\b(prolepsis[_:])?{name}\b", queries)] == []


def test_the_debug_dashboard_leads_to_examples_and_to_traces() -> None:
    [board] = [board for board in dashboards() if board["uid"] == "prolepsis-debug"]
    panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    links = [link["url"] for panel in panels for link in panel["fieldConfig"]["defaults"].get("links", ())]
    assert links == ["http://${__data.fields.instance}/console/quality"]
    traced = [target["expr"] for panel in panels for target in panel["targets"] if target.get("exemplar")]
    assert len(traced) == sum("_bucket{" in expression for expression in traced) > 0, "exemplars hang on buckets"


@pytest.mark.parametrize("dashboard", dashboards(), ids=lambda dashboard: str(dashboard["uid"]))
def test_panels_have_names_and_places_of_their_own(dashboard: Mapping[str, Any]) -> None:
    panels = dashboard["panels"]
    assert {panel["type"] for panel in panels} <= KINDS
    assert len({panel["id"] for panel in panels}) == len(panels)
    for one, other in combinations((panel["gridPos"] for panel in panels), 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or below
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)


@pytest.mark.parametrize("dashboard", dashboards(), ids=lambda dashboard: str(dashboard["uid"]))
def test_dashboards_share_schema_lists_marks_and_links(dashboard: Mapping[str, Any]) -> None:
    first, *_ = every = dashboards()
    assert [dashboard[part] for part in SHARED] == [first[part] for part in SHARED]
    others = [f"/d/{other['uid']}" for other in every if other["uid"] != dashboard["uid"]]
    assert [link["url"] for link in dashboard["links"]] == others
    assert dashboard["templating"]["list"][0]["type"] == "datasource"
    sources = [part["datasource"]["uid"] for part in (*parts(dashboard), *dashboard["annotations"]["list"])]
    assert set(sources) == {"${datasource}"}
