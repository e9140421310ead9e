"""Dashboards as Grafana reads them (schema 39), made of rows of panels."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Json = dict[str, object]
Kind = Literal["timeseries", "stat", "table", "state-timeline", "heatmap"]
SCHEMA = 39
_COLUMNS = 24
_FORMATS: Mapping[str, Json] = {"table": {"format": "table", "instant": True}, "heatmap": {"format": "heatmap"}}
_SOURCE: Json = {"type": "prometheus", "uid": "${datasource}"}
NO_TRAFFIC = "no traffic"


@dataclass(frozen=True, slots=True)
class Query:
    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """One figure. `width` is in columns of 24."""

    title: str
    queries: Sequence[Query]
    unit: str = "short"
    kind: Kind = "timeseries"
    about: str = ""
    """Description: what it shows and how to read it."""
    width: int = 8
    is_stacked: bool = False
    most: float | None = None
    """Upper end of the axis."""

    @property
    def height(self) -> int:
        return 4 if self.kind == "stat" else 8


@dataclass(frozen=True, slots=True)
class PanelRow:
    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True, slots=True)
class Variable:
    """A list at the top of a dashboard, filled by a query for values of a label."""

    name: str
    query: str


@dataclass(frozen=True, slots=True)
class Annotation:
    """Marks the moments at which a query has a value."""

    name: str
    expr: str
    text: str
    color: str


@dataclass(frozen=True, slots=True)
class Dashboard:
    uid: str
    title: str
    about: str
    rows: Sequence[PanelRow]

    def queries(self) -> Iterator[Query]:
        """Yield the queries of all panels."""
        for row in self.rows:
            for panel in row.panels:
                yield from panel.queries


def filled(expression: str, rate_interval: str) -> str:
    """Return an expression of a panel as Prometheus takes it: for every value of the dashboard's variables."""
    return re.sub(r'"\$\w+"', '".*"', expression).replace("$__rate_interval", rate_interval)


def dashboard_json(
    dashboard: Dashboard, variables: Sequence[Variable], annotations: Sequence[Annotation], others: Sequence[Dashboard]
) -> str:
    """Return the file that Grafana imports; it links to `others`."""
    model: Json = {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.about,
        "tags": ["prolepsis"],
        "schemaVersion": SCHEMA,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "browser",
        "links": [_link(other) for other in others if other.uid != dashboard.uid],
        "templating": {"list": [_source_variable(), *(_variable(one) for one in variables)]},
        "annotations": {"list": [_annotation(one) for one in annotations]},
        "panels": list(_panels(dashboard)),
    }
    return json.dumps(model, indent=1, ensure_ascii=False) + "\n"


def _panels(dashboard: Dashboard) -> Iterator[Json]:
    number, y = 0, 0
    for row in dashboard.rows:
        number += 1
        yield {
            "id": number,
            "type": "row",
            "title": row.title,
            "collapsed": False,
            "panels": [],
            "gridPos": {"x": 0, "y": y, "w": _COLUMNS, "h": 1},
        }
        y, x, tallest = y + 1, 0, 0
        for panel in row.panels:
            number += 1
            if x + panel.width > _COLUMNS:
                x, y, tallest = 0, y + tallest, 0
            yield _panel(panel, number, {"x": x, "y": y, "w": panel.width, "h": panel.height})
            x, tallest = x + panel.width, max(tallest, panel.height)
        y += tallest


def _panel(panel: Panel, number: int, place: Json) -> Json:
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": _SOURCE,
        "gridPos": place,
        "targets": [_target(query, index, panel.kind) for index, query in enumerate(panel.queries)],
        "fieldConfig": {"defaults": _field(panel), "overrides": []},
        "options": _options(panel),
    }


def _target(query: Query, index: int, kind: Kind) -> Json:
    shown = _FORMATS.get(kind, {})
    return {
        "refId": chr(ord("A") + index),
        "datasource": _SOURCE,
        "expr": query.expr,
        "legendFormat": query.legend or "__auto",
        **shown,
    }


def _field(panel: Panel) -> Json:
    field: Json = {"unit": panel.unit, "noValue": NO_TRAFFIC}
    if panel.most is not None:
        field |= {"min": 0, "max": panel.most}
    if panel.kind == "timeseries":
        stacking = {"mode": "normal" if panel.is_stacked else "none", "group": "A"}
        field["custom"] = {"fillOpacity": 20 if panel.is_stacked else 5, "stacking": stacking, "spanNulls": False}
    return field


def _options(panel: Panel) -> Json:
    if panel.kind == "stat":
        return {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "value", "graphMode": "area"}
    if panel.kind == "timeseries":
        return {"legend": {"displayMode": "table", "placement": "bottom", "calcs": ["lastNotNull", "max"]}}
    return {}


def _source_variable() -> Json:
    return {"name": "datasource", "label": "data source", "type": "datasource", "query": "prometheus", "refresh": 1}


def _variable(variable: Variable) -> Json:
    return {
        "name": variable.name,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": variable.query, "refId": variable.name},
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
        "sort": 1,
    }


def _annotation(annotation: Annotation) -> Json:
    return {
        "name": annotation.name,
        "datasource": _SOURCE,
        "enable": True,
        "expr": annotation.expr,
        "step": "30s",
        "titleFormat": annotation.name,
        "textFormat": annotation.text,
        "iconColor": annotation.color,
    }


def _link(other: Dashboard) -> Json:
    return {
        "type": "link",
        "title": other.title,
        "url": f"/d/{other.uid}",
        "keepTime": True,
        "includeVars": True,
        "targetBlank": False,
    }
