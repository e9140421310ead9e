"""Rule files: those of the objectives, and the other alerts; each alert with the address of its runbook."""

from collections.abc import Sequence
from importlib import resources
from typing import Any, cast

import yaml

from prolepsis.ops.monitoring.burn_rates import Group, Rule


def shipped(name: str) -> str:
    """Return the text of a file of this package."""
    return (resources.files("prolepsis.ops.monitoring") / name).read_text(encoding="utf-8")


def alert_groups() -> list[Group]:
    """Return the groups of alerts.yaml; `baseline_of` in a rule stands for the expression of a baseline."""
    groups = cast(list[Group], yaml.safe_load(shipped("alerts.yaml"))["groups"])
    return [{**group, "rules": [_expanded(rule) for rule in _rules(group)]} for group in groups]


def _expanded(rule: Rule) -> Rule:
    return {"record": rule["record"], "expr": _baseline(rule["baseline_of"])} if "baseline_of" in rule else rule


def _baseline(series: object) -> str:
    """Return the same hour of the week in the last four weeks; the weeks that are not there yet do not count."""
    weeks = [f'label_replace({series} offset {week}w, "week", "{week}", "", "")' for week in (1, 2, 3, 4)]
    return "avg(\n  " + "\n  or ".join(weeks) + "\n)"


def with_runbooks(groups: Sequence[Group], runbook_url: str) -> list[Group]:
    """Return the groups with the address of a runbook, `runbook_url` with {name} filled in, in place of its name."""
    return [{**group, "rules": [_linked(rule, runbook_url) for rule in _rules(group)]} for group in groups]


def _rules(group: Group) -> list[Rule]:
    return cast(list[Rule], group["rules"])


def _linked(rule: Rule, runbook_url: str) -> Rule:
    if "alert" not in rule:
        return rule
    annotations = dict(cast(dict[str, Any], rule["annotations"]))
    page = annotations.pop("runbook")
    return {**rule, "annotations": {**annotations, "runbook_url": runbook_url.replace("{name}", page)}}
