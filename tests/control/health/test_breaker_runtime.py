"""Breakers of replicas: what an operator sets holds on all, and one that opens by itself opens on all."""

from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from prolepsis.control.controls.controls import Controls
from prolepsis.control.controls.file import ControlsFile
from prolepsis.control.health.breaker import Breakers, BreakerSettings
from prolepsis.control.health.breaker_runtime import OPENED, OVERRIDDEN, BreakerRuntime
from prolepsis.control.store.controls import Control, control_key
from prolepsis.control.store.migrate import migrated_in_memory
from prolepsis.core.audit_event import AuditEvent
from prolepsis.core.plan import DisabledProposer
from prolepsis.core.stats import TenantCounts, TrafficClassCounts
from tests.control.controls.test_controls import Table, server, settle

KEY = ("suffix", "chat")
OUT = [DisabledProposer(*KEY)]


class Replica:
    """The breakers of one replica, and what its plan leaves out."""

    def __init__(self, controls: Controls) -> None:
        self.controls = controls
        self.counts = TrafficClassCounts(*KEY)
        self.disabled: list[DisabledProposer] = []
        self.events: list[AuditEvent] = []
        self.breakers = BreakerRuntime(
            Breakers(BreakerSettings()), self._disable, CollectorRegistry(), controls=controls, emit=self.events.append
        )

    def _disable(self, disabled: tuple[DisabledProposer, ...]) -> None:
        self.disabled = list(disabled)

    async def tick(self) -> None:
        await settle(self.controls)
        self.breakers.observe([self.counts])

    @property
    def reasons(self) -> list[str]:
        return [str(event.after["reason"]) for event in self.events if isinstance(event.after, dict)]


@pytest.fixture
def table() -> Table:
    return Table(migrated_in_memory())


@pytest.fixture
def pair(table: Table, tmp_path: Path) -> tuple[Replica, Replica]:
    return Replica(server(table, tmp_path, "a")), Replica(server(table, tmp_path, "b"))


async def test_a_breaker_that_an_operator_sets_is_set_on_all_replicas(pair: tuple[Replica, Replica]) -> None:
    one, other = pair
    one.breakers.set(KEY, "forced_open", "kim")
    for each in (one, other, one):
        await each.tick()
    assert one.disabled == other.disabled == OUT
    other.breakers.set(KEY, "closed", "bob")
    for each in (other, one):
        await each.tick()
    assert one.disabled == other.disabled == []
    assert one.reasons == other.reasons == ["operator", "operator"]
    assert [event.actor for event in one.events] == ["kim", "bob"]


async def test_of_what_a_machine_and_the_store_set_the_newer_counts(
    pair: tuple[Replica, Replica], tmp_path: Path
) -> None:
    one, other = pair
    file, key = ControlsFile(tmp_path / "a.json"), control_key(OVERRIDDEN, " ".join(KEY))
    file.set(key, Control("forced_open", 1.0, "ann"))
    await one.tick()
    assert one.disabled == OUT
    other.breakers.set(KEY, "forced_closed", "bob")
    for each in (other, one):
        await each.tick()
    assert one.disabled == []
    one.breakers.set(KEY, "closed", "kim")
    await one.tick()
    assert one.breakers.shown().breakers[0].state == "closed"
    assert file.read().local[key].value is None


async def test_an_override_that_is_not_understood_changes_nothing(pair: tuple[Replica, Replica]) -> None:
    one, _ = pair
    one.controls.set(OVERRIDDEN, " ".join(KEY), "of a later version")
    one.controls.set(OPENED, " ".join(KEY), "of a later version", by="another replica")
    await one.tick()
    assert one.reasons == ["shared"]


async def test_a_breaker_that_opens_by_itself_opens_on_all_and_is_not_sent_back(pair: tuple[Replica, Replica]) -> None:
    one, other = pair
    for each in pair:
        await each.tick()
    one.counts = TrafficClassCounts(*KEY, num_overdue=1)
    for each in (one, one, other, one, other):
        await each.tick()
    assert (one.reasons, other.reasons) == (["overdue"], ["shared"])
    assert one.disabled == other.disabled == OUT


async def test_a_breaker_that_opens_for_one_tenant_opens_for_it_on_all(pair: tuple[Replica, Replica]) -> None:
    one, other = pair
    tenant = "a bank: north, south"
    for each in pair:
        await each.tick()
    useless = TenantCounts(tenant, num_judged=500)
    one.counts = TrafficClassCounts(*KEY, num_judged=500, tenants=(useless,))
    for each in (one, one, other, one, other):
        await each.tick()
    expected = DisabledProposer(*KEY, tenants=frozenset({tenant}))
    assert (one.disabled, other.disabled) == ([replace(expected, compared=True)], [expected])
    one.counts = replace(one.counts, num_overdue=1)
    for each in (one, one, other, one, other):
        await each.tick()
    assert one.disabled == other.disabled == OUT
