"""Every series: documented as it is declared, within the budget, and as promtool wants it."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from docs.tables import expanded
from prolepsis.adapters.vllm.served import ARGUMENTS
from prolepsis.core.ended import AssignedArm, Assignment, RequestAbout, RequestEnded
from prolepsis.core.figures import RequestDone
from prolepsis.core.stats import Mode, ProposerCounts, RequestStats
from prolepsis.core.telemetry.declare import MetricsRegistry
from prolepsis.core.telemetry.labels import LABELS, OTHER
from prolepsis.core.telemetry.metrics import Metrics
from tests.core.telemetry.series import most_series
from tests.core.telemetry.servers import server_with_everything
from tests.core.telemetry.test_requests import ended, prompt, stats
from tests.paths import ROOT

PAGE = ROOT / "docs" / "reference" / "metrics.md"
BUDGET = 20_700
_ROW = re.compile(r"^\| `(prolepsis_\w+)` \| ([^|]*) \|", re.MULTILINE)


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[MetricsRegistry]:
    with server_with_everything(tmp_path) as (_, metrics):
        yield metrics.registry


def test_every_family_is_declared_with_its_labels(registry: MetricsRegistry) -> None:
    collected = {family.name for family in registry.collect() if not family.name.startswith("process_")}
    declared = {re.sub("_(total|info)$", "", name) for name in registry.families}
    assert collected == declared


@pytest.mark.parametrize("name", ["store_dropped", "audit_anchor_failures", "admission_refused", "engine_restarts"])
def test_a_counter_whose_rise_is_an_alarm_begins_at_zero(registry: MetricsRegistry, name: str) -> None:
    [family] = [family for family in registry.collect() if family.name == f"prolepsis_{name}"]
    assert {one.value for one in family.samples} == {0.0}


def test_only_one_module_makes_series() -> None:
    imports = re.compile(r"from prometheus_client import (\([^)]*\)|[^\n]*)")
    kinds = {"Counter", "Gauge", "Histogram", "Summary", "Info", "Enum"}
    sources = [
        path
        for path in (ROOT / "src").rglob("*.py")
        if kinds & set(re.findall(r"\w+", " ".join(imports.findall(path.read_text()))))
    ]
    assert [path.name for path in sources] == ["declare.py"]


def test_the_documented_bounds_of_labels_are_those_that_hold() -> None:
    bounds = dict(re.findall(r"^\| (\w+) \| [^|]+ \| (\d+) \|$", PAGE.read_text(), re.MULTILINE))
    assert "traffic_class" in bounds
    assert {label: int(most) for label, most in bounds.items()} == {label: LABELS[label].most for label in bounds}


def test_each_series_is_in_one_table_of_the_page(registry: MetricsRegistry) -> None:
    documented = [
        (name, tuple(re.findall(r"\w+", labels))) for name, labels in _ROW.findall(expanded(PAGE.read_text()))
    ]
    assert sorted(documented) == sorted((name, family.labels) for name, family in registry.families.items())


def test_other_pages_name_no_series_that_is_gone(registry: MetricsRegistry) -> None:
    known = {re.sub("_(total|info)$", "", name) for name in registry.families}
    for page in (ROOT / "docs").rglob("*.md"):
        if page.parent.name != "log":
            named = set(re.findall(r"`(prolepsis_\w+?)(?:_total|_info|_bucket|_sum|_count)?[`{]", page.read_text()))
            assert named - ARGUMENTS <= known, page


def test_all_series_together_stay_within_the_budget(registry: MetricsRegistry) -> None:
    largest = {name: most_series(registry, family) for name, family in registry.families.items()}
    assert sum(largest.values()) < BUDGET, sorted(largest.items(), key=lambda one: -one[1])[:20]


_ROUTES = [f"/v1/route-{number}" for number in range(20)]
_TIERS = ["premium", "standard", "economy", "batch"]
_RULES = [f"rule-{number}" for number in range(50)]
_PROPOSERS = ["grammar", "suffix", "prompt_lookup", "prediction", "draft_head"]


def test_twenty_routes_four_tiers_fifty_rules_and_five_proposers_keep_their_names() -> None:
    metrics = Metrics()
    arms: list[tuple[AssignedArm, Mode]] = [("canary", "on"), ("holdout", "off"), ("unassigned", "off")]
    left = replace(prompt(), answer="cut", end="left")
    for route, tier in product(_ROUTES[:5], _TIERS):  # takes no place of those that finish
        metrics.requests.ended(replace(_ended(route, tier, _RULES[0], "canary", "on"), prompts=(left,)))
    for (route, tier), (arm, mode) in product(product(_ROUTES, _TIERS), arms):
        metrics.requests.ended(_ended(route, tier, _RULES[0], arm, mode))
    for rule, (arm, mode) in product(_RULES, arms):
        metrics.requests.ended(_ended(_ROUTES[0], _TIERS[0], rule, arm, mode))
    for proposer, form, context in product(_PROPOSERS, ("free", "structured"), ("short", "medium", "long")):
        metrics.observe(RequestDone(_drafted(proposer, f"completions/standard/{form}/{context}")))
    shown = {value for family in metrics.registry.collect() for one in family.samples for value in one.labels.values()}
    assert OTHER not in shown
    assert {*_ROUTES, *_TIERS, *_RULES, *_PROPOSERS} <= shown
    assert sum(len(family.samples) for family in metrics.registry.collect()) < BUDGET


def _ended(route: str, tier: str, rule: str, arm: AssignedArm, mode: Mode) -> RequestEnded:
    about = RequestAbout(
        answer_id="a",
        tenant="",
        key_id="",
        tier=tier,
        route=route,
        model="tiny",
        policy_rule=rule,
        assignment=Assignment(rollout_id=rule, run=1, stage=0, arm=arm, mode=mode),
    )
    return ended(prompt(mode), about=about)


def _drafted(proposer: str, traffic_class: str) -> RequestStats:
    counts, drafted = ProposerCounts(), stats()
    counts.record(16, 8)
    drafted.proposers, drafted.traffic_class = {proposer: counts}, traffic_class
    return drafted


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (Debian package prometheus) is not installed")
def test_promtool_finds_nothing_to_mend(registry: MetricsRegistry, tmp_path: Path) -> None:
    metrics = Metrics()
    metrics.observe(RequestDone(_drafted("suffix", "completions/standard/free/short")))
    metrics.requests.ended(ended())
    for number, text in enumerate((metrics.exposition(), _exposition(registry))):
        found = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, check=False)
        assert (found.returncode, found.stdout, found.stderr) == (0, b"", b""), number


def _exposition(registry: MetricsRegistry) -> bytes:
    from prometheus_client import generate_latest

    return generate_latest(registry)
