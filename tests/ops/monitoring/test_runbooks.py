"""Every alert names a runbook that exists, and every runbook has the same five parts and is needed."""

import re
from pathlib import Path

import pytest

from prolepsis.core.errors import ConfigError
from prolepsis.ops.console.runbook import by_alert, runbooks
from prolepsis.ops.monitoring.burn_rates import burn_rate_groups
from prolepsis.ops.monitoring.files import RUNBOOK_URL, alert_groups, monitoring_files, shipped, with_runbooks
from prolepsis.ops.monitoring.objectives import parse_objectives
from prolepsis.server.cli.main import COMMANDS
from tests.ops.monitoring.rules import all_rules
from tests.paths import ROOT

RUNBOOKS = ROOT / "src" / "prolepsis" / "ops" / "console" / "runbooks"
PAGES = sorted(RUNBOOKS.glob("*.md"))
OBJECTIVES = parse_objectives(shipped("slos.yaml"), "slos.yaml")
ALERTS = [rule for rule in all_rules([*alert_groups(), *burn_rate_groups(OBJECTIVES)]) if "alert" in rule]


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


def test_links_are_addresses_with_the_name_of_the_page() -> None:
    (group,) = with_runbooks(
        [{"name": "a", "rules": [{"alert": "A", "annotations": {"runbook": "cost"}}]}], "https://x/y/{name}.html"
    )
    assert group["rules"] == [{"alert": "A", "annotations": {"runbook_url": "https://x/y/cost.html"}}]


def test_an_address_without_the_name_of_a_page_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"allowed: an address with \{name\}"):
        monitoring_files(OBJECTIVES, "https://x/y")


def test_by_default_a_link_leads_to_the_console_of_the_server_that_is_scraped() -> None:
    files = monitoring_files(OBJECTIVES, RUNBOOK_URL)
    (target,) = re.findall(r"targets: \[([^]]+)\]", files["prometheus.yaml"].split("job_name: prolepsis")[1])[:1]
    assert f"runbook_url: http://{target.strip(chr(34))}/console/runbooks/cost\n" in files["rules/alerts.yaml"]


def test_the_console_reads_the_alerts_of_a_runbook() -> None:
    assert {alert: page.name for alert, page in by_alert(runbooks()).items()} == {
        str(rule["alert"]): page_of(rule) for rule in ALERTS
    }
