"""Prometheus rules of objectives: error ratios, budgets and alerts on the rate at which a budget burns.

Names and labels are those of Sloth, so that dashboards made for them fit. Windows and factors: The Site Reliability
Workbook, chapter 5, "Multiwindow, Multi-Burn-Rate Alerts".
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from prolepsis.ops.monitoring.objectives import WINDOW, Objective, Objectives

PERIOD_DAYS = 30
Rule = dict[str, object]
Group = dict[str, object]
Severity = Literal["page", "ticket"]


@dataclass(frozen=True, slots=True)
class BurnRate:
    """An alert fires while the budget burns this fast in both windows: the short one ends it soon after the harm."""

    severity: Severity
    factor: float  # 1 uses the budget up in the period
    long: str
    short: str


BURN_RATES = (
    BurnRate("page", 14.4, "1h", "5m"),  # 2 % of the budget in an hour
    BurnRate("page", 6, "6h", "30m"),  # 5 % in six hours
    BurnRate("ticket", 3, "1d", "2h"),  # 10 % in a day
    BurnRate("ticket", 1, "3d", "6h"),  # 10 % in three days
)
WINDOWS = ("5m", "30m", "1h", "2h", "6h", "1d", "3d")
_SECONDS = {"m": 60, "h": 3600, "d": 86_400}


def seconds(window: str) -> int:
    """Return the length of a window such as 5m."""
    return int(window[:-1]) * _SECONDS[window[-1]]


def burn_rate_groups(objectives: Objectives) -> list[Group]:
    groups: list[Group] = []
    for slo in objectives.slos:
        name = f"{objectives.service}-{slo.name}"
        ids = {"sloth_service": objectives.service, "sloth_slo": slo.name, "sloth_id": name}
        labels = {**objectives.labels, **slo.labels, **ids}
        groups += [
            {"name": f"sloth-slo-sli-recordings-{name}", "rules": list(_ratios(slo, labels))},
            {"name": f"sloth-slo-meta-recordings-{name}", "rules": list(_budgets(objectives, slo, labels, ids))},
        ]
        if alerts := list(_alerts(slo, ids)):
            groups.append({"name": f"sloth-slo-alerts-{name}", "rules": alerts})
    return groups


def _ratios(slo: Objective, labels: Mapping[str, str]) -> Iterator[Rule]:
    for window in WINDOWS:
        yield {
            "record": f"slo:sli_error:ratio_rate{window}",
            "expr": slo.sli.ratio.replace(WINDOW, window),
            "labels": {**labels, "sloth_window": window},
        }
    if slo.alerting.minimum_events:  # the numbers of events in the long windows of alerts
        for window in (rate.long for rate in BURN_RATES):
            yield {
                "record": f"slo:sli_events:increase{window}",
                "expr": slo.sli.number(window, seconds(window)),
                "labels": {**labels, "sloth_window": window},
            }
    short = f"slo:sli_error:ratio_rate{WINDOWS[0]}{selector(labels)}"
    yield {
        "record": f"slo:sli_error:ratio_rate{PERIOD_DAYS}d",
        "expr": f"avg_over_time({short}[{PERIOD_DAYS}d])",
        "labels": {**labels, "sloth_window": f"{PERIOD_DAYS}d"},
    }


def _budgets(
    objectives: Objectives, slo: Objective, labels: Mapping[str, str], ids: Mapping[str, str]
) -> Iterator[Rule]:
    of_slo = selector(ids)
    budget = f"on(sloth_id, sloth_slo, sloth_service) group_left()\nslo:error_budget:ratio{of_slo}"
    period = f"slo:sli_error:ratio_rate{PERIOD_DAYS}d{of_slo}"
    expressions = {
        "slo:objective:ratio": f"vector({1 - slo.budget:.9g})",
        "slo:error_budget:ratio": f"vector({slo.budget:.9g})",
        "slo:time_period:days": f"vector({PERIOD_DAYS})",
        "slo:current_burn_rate:ratio": f"slo:sli_error:ratio_rate5m{of_slo}\n/ {budget}",
        "slo:period_burn_rate:ratio": f"{period}\n/ {budget}",
        "slo:period_error_budget_remaining:ratio": f"1 - slo:period_burn_rate:ratio{of_slo}",
    }
    for name, expression in expressions.items():
        yield {"record": name, "expr": expression, "labels": dict(labels)}
    info = {"sloth_mode": "prolepsis", "sloth_spec": objectives.version, "sloth_objective": f"{slo.objective:g}"}
    yield {"record": "sloth_slo_info", "expr": "vector(1)", "labels": {**labels, **info}}


def _alerts(slo: Objective, ids: Mapping[str, str]) -> Iterator[Rule]:
    for severity, alert in (("page", slo.alerting.page_alert), ("ticket", slo.alerting.ticket_alert)):
        rates = [rate for rate in BURN_RATES if rate.severity == severity and rate.factor * slo.budget < 1]
        if alert.disable or not rates:
            continue
        condition = "\nor\n".join(_burning(slo, rate, ids) for rate in rates)
        if slo.alerting.while_query:
            condition = f"({condition})\nand on()\n({slo.alerting.while_query})"
        yield {
            "alert": slo.alerting.name,
            "expr": condition,
            "labels": {"severity": severity, **slo.alerting.labels, **alert.labels},
            "annotations": {
                "summary": f"{slo.name}: the error budget burns too fast",
                "description": slo.description,
                **slo.alerting.annotations,
                **alert.annotations,
            },
        }


def _burning(slo: Objective, rate: BurnRate, ids: Mapping[str, str]) -> str:
    """Return the condition that both windows are above the limit, with enough events in the long one."""
    of_slo = selector(ids)
    limit = f"({rate.factor:g} * {slo.budget:.9g})"
    parts = [f"(slo:sli_error:ratio_rate{window}{of_slo} > {limit})" for window in (rate.short, rate.long)]
    if slo.alerting.minimum_events:
        parts.append(f"(slo:sli_events:increase{rate.long}{of_slo} >= {slo.alerting.minimum_events:g})")
    return "(\n" + "\nand\n".join(f"max without(sloth_window) {part}" for part in parts) + "\n)"


def selector(labels: Mapping[str, str]) -> str:
    return "{" + ", ".join(f'{name}="{value}"' for name, value in sorted(labels.items())) + "}"
