"""Every alert names a runbook that exists, and every runbook has the same five parts and is needed."""

import re
from pathlib import Path

import pytest

from prolepsis.cli.main import COMMANDS
from prolepsis.monitoring.burn_rates import burn_rate_groups
from prolepsis.monitoring.objectives import parse_objectives
from prolepsis.monitoring.rules import alert_groups, all_rules, shipped, with_runbooks

RUNBOOKS = Path(__file__).parents[2] / "docs" / "runbooks"
PAGES = sorted(RUNBOOKS.glob("*.md"))
ALERTS = [
    rule
    for rule in all_rules([*alert_groups(), *burn_rate_groups(parse_objectives(shipped("slos.yaml"), "slos.yaml"))])
    if "alert" in rule
]


def page_of(rule: dict[str, object]) -> str:
    annotations = rule["annotations"]
    assert isinstance(annotations, dict)
    return str(annotations["runbook"])


def test_each_alert_has_a_page_and_each_page_an_alert() -> None:
    assert {page_of(rule) for rule in ALERTS} == {page.stem for page in PAGES}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_names_its_alerts_and_has_five_parts(page: Path) -> None:
    text = page.read_text()
    assert re.findall(r"^## (.+)$", text, re.M) == [
        *("What it means", "First look", "Stop the harm", "Find the cause", "Close")
    ]
    first = text.partition("## ")[0]
    assert set(re.findall(r"`(\w+)`", first)) == {str(rule["alert"]) for rule in ALERTS if page_of(rule) == page.stem}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_commands_of_a_page_exist(page: Path) -> None:
    commands = set(re.findall(r"`prolepsis (\w+)", page.read_text()))
    assert commands <= COMMANDS.keys()


def test_links_lead_to_the_folder_that_is_given() -> None:
    (group,) = with_runbooks(
        [{"name": "a", "rules": [{"alert": "A", "annotations": {"runbook": "cost"}}]}], "https://x/y/"
    )
    assert group["rules"] == [{"alert": "A", "annotations": {"runbook_url": "https://x/y/cost.html"}}]
