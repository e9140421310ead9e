"""Dashboards and rules: what is committed is what is generated, and every query is of series that exist."""

import json
import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import promql_parser
import pytest

from prolepsis.ops.monitoring.burn_rates import burn_rate_groups
from prolepsis.ops.monitoring.dashboards.files import ANNOTATIONS, DASHBOARDS, VARIABLES
from prolepsis.ops.monitoring.files import RUNBOOK_URL, monitoring_files
from prolepsis.ops.monitoring.grafana import filled
from prolepsis.ops.monitoring.objectives import parse_objectives
from prolepsis.ops.monitoring.rules import alert_groups, shipped
from tests.core.telemetry.servers import server_with_everything
from tests.ops.monitoring.rules import all_rules
from tests.paths import ROOT

COMMITTED = ROOT / "monitoring"
OBJECTIVES = parse_objectives(shipped("slos.yaml"), "slos.yaml")
RULES = list(all_rules([*alert_groups(), *burn_rate_groups(OBJECTIVES)]))
RECORDED = {str(rule["record"]) for rule in RULES if "record" in rule}
OTHERS = {"up", "ALERTS", "process_resident_memory_bytes"}
"""Series of Prometheus and of its client library."""


def expressions() -> Iterator[str]:
    yield from (query.expr for dashboard in DASHBOARDS for query in dashboard.queries())
    yield from (annotation.expr for annotation in ANNOTATIONS)
    yield from (str(rule["expr"]) for rule in RULES)


def test_committed_dashboards_are_the_generated_ones() -> None:
    files = {**monitoring_files(OBJECTIVES, RUNBOOK_URL), "slos.yaml": shipped("slos.yaml")}
    committed = {str(file.relative_to(COMMITTED)): file.read_text() for file in COMMITTED.rglob("*") if file.is_file()}
    assert committed.keys() == files.keys()
    for name, content in files.items():
        assert committed[name] == content, f"{name}: run `prolepsis monitoring write monitoring`"


def test_every_expression_is_promql() -> None:
    for expression in expressions():
        promql_parser.parse(filled(expression, "5m"))


def test_every_series_is_exported_or_recorded(tmp_path: Path) -> None:
    with server_with_everything(tmp_path) as (_, metrics):
        exported = set(metrics.registry.families)
    known = exported | RECORDED | OTHERS
    asked = [*expressions(), *(variable.query for variable in VARIABLES)]
    names = {name for one in asked for name in re.findall(r"\b(?:prolepsis[_:][\w:]+|slo:[\w:]+)", one)}
    unknown = {name for name in names if name not in known and re.sub("_(bucket|sum|count)$", "", name) not in exported}
    assert unknown == set()


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda one: str(one.uid))
def test_panels_have_names_and_places_of_their_own(dashboard: object) -> None:
    text = next(
        c for n, c in monitoring_files(OBJECTIVES, RUNBOOK_URL).items() if n.endswith(f"{_name(dashboard)}.json")
    )
    panels = json.loads(text)["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for one, other in combinations((panel["gridPos"] for panel in panels), 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or below
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)
    assert json.loads(text)["templating"]["list"][0]["type"] == "datasource"


def _name(dashboard: object) -> str:
    return str(getattr(dashboard, "uid", "")).removeprefix("prolepsis-")
