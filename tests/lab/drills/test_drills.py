"""The list of drills: each sign is the condition of an alert that is shipped."""

import re
from typing import Any

import pytest

from prolepsis.lab.drills.drills import BY_NAME, DRILLS, Sign
from prolepsis.ops.monitoring.files import alert_groups

RULES: dict[str, Any] = {
    rule["alert"]: rule["expr"]
    for group in alert_groups()
    for rule in group["rules"]  # type: ignore[attr-defined]
    if "alert" in rule
}
FOUND = {sign for drill in DRILLS for sign in (drill.alarm, drill.safe) if sign is not None}
SIGNS = sorted(FOUND, key=lambda sign: sign.alert)


@pytest.mark.parametrize("sign", SIGNS, ids=lambda sign: sign.alert)
def test_a_sign_reads_the_series_of_its_alert(sign: Sign) -> None:
    found = re.match("[a-z_]+", sign.line)
    assert found is not None
    assert found[0] in RULES[sign.alert]


def test_names_are_unique_and_those_of_others_are_known() -> None:
    assert len(BY_NAME) == len(DRILLS)
    assert all(drill.chaos_mesh.endswith("Chaos") or drill.chaos_mesh == "-" for drill in DRILLS)


def test_a_sum_that_rises_or_falls_is_a_sign() -> None:
    rises, falls = Sign("A", 'n_total{.*of="x"'), Sign("B", "up", falls=True)
    before = 'n_total{of="x",to="1"} 2.0\nn_total{of="y"} 5.0\nup 1.0\n'
    assert not rises.holds(before, before)
    assert rises.holds(before, before + 'n_total{of="x",to="2"} 1.0\n')
    assert not rises.holds(before, before.replace("5.0", "6.0"))
    assert falls.holds(before, before.replace("up 1.0", "up 0.0"))
    assert not falls.holds(before, before)
