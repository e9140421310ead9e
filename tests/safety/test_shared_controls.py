"""What one replica sets, all follow; without the store it holds where it was set, also over a restart."""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from threading import Thread

import pytest
from prometheus_client import CollectorRegistry
from pydantic import TypeAdapter
from sqlalchemy.exc import IntegrityError
from structlog.testing import capture_logs

from prolepsis.audit.summary import changed_fields, reason_of
from prolepsis.core.audit_event import AuditEvent
from prolepsis.core.errors import InvalidParameter, StoreUnavailable
from prolepsis.core.files import JsonFile
from prolepsis.core.kill_scope import EVERYTHING
from prolepsis.core.plan import DisabledProposer
from prolepsis.core.stats import TenantCounts, TrafficClassCounts
from prolepsis.safety.breaker import Breakers, BreakerSettings
from prolepsis.safety.breaker_runtime import BreakerFeature, breaker_file
from prolepsis.safety.kill_switch import MAX_SCOPES, NEVER_SET, KilledScope, kill_file
from prolepsis.safety.kill_switch_runtime import KillSwitch
from prolepsis.safety.shared_controls import ControlCopy, SharedControls, Values, copy_file
from prolepsis.store.controls import Control, ControlKey, ControlTable
from prolepsis.store.database import Database
from tests.rollout.stores import memory_database
from tests.waiting import ended

KIND = "kill"


class Table(ControlTable):
    """A store that may be down."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.is_down = False

    def exchange(self, changes: Mapping[ControlKey, Control]) -> dict[ControlKey, Control]:
        if self.is_down:
            raise StoreUnavailable("down")
        return super().exchange(changes)


@pytest.fixture
def table() -> Table:
    return Table(memory_database())


def replica(table: Table, folder: Path, name: str = "a", *, now: float | None = None) -> SharedControls:
    """Return a replica; `now` stops its clock."""
    clock = time.time if now is None else lambda: now
    return SharedControls(table, copy_file(folder / f"{name}.json"), now=clock)


async def settle(*controls: SharedControls) -> None:
    for _ in range(2):
        await asyncio.gather(*(one.tick() for one in controls))


async def test_all_replicas_follow_a_change(table: Table, tmp_path: Path) -> None:
    ours, theirs = replica(table, tmp_path, "a"), replica(table, tmp_path, "b")
    seen: list[Values] = []
    theirs.follow(KIND, seen.append)
    ours.set(KIND, "tenant:bank", "1")
    assert ours.of(KIND) == {"tenant:bank": "1"}
    await settle(ours, theirs)
    ours.set("breaker", "x", "2")
    await settle(ours, theirs)
    theirs.set(KIND, "tenant:bank", None)
    await settle(theirs, ours)
    assert seen == [{}, {"tenant:bank": "1"}, {}]
    assert (dict(ours.of(KIND)), dict(ours.of("breaker"))) == ({}, {"x": "2"})


async def test_without_the_store_it_holds_here_and_over_a_restart(table: Table, tmp_path: Path) -> None:
    ours, theirs = replica(table, tmp_path, "a"), replica(table, tmp_path, "b")
    theirs.set(KIND, "rule:old", "0")
    await settle(theirs, ours)
    table.is_down = True
    ours.set(KIND, "tenant:bank", "1")
    ours.set(KIND, "rule:old", None)
    await settle(ours, theirs)
    again = replica(table, tmp_path, "a")
    await settle(again)
    assert dict(again.of(KIND)) == {"tenant:bank": "1"}
    assert dict(theirs.of(KIND)) == {"rule:old": "0"}
    table.is_down = False
    await settle(again, theirs)
    assert dict(again.of(KIND)) == dict(theirs.of(KIND)) == {"tenant:bank": "1"}
    assert copy_file(tmp_path / "a.json").read().pending == ()


@pytest.mark.parametrize(("old", "new"), [("stop", None), (None, "stop"), ("stop", "other")])
async def test_a_change_that_waited_for_the_store_does_not_undo_later_changes(
    table: Table, tmp_path: Path, old: str | None, new: str | None
) -> None:
    ours, theirs = replica(table, tmp_path, "a", now=100.0), replica(table, tmp_path, "b", now=200.0)
    theirs.set(KIND, "tenant:bank", "first")
    table.is_down = True
    ours.set(KIND, "tenant:bank", old)
    await settle(ours)
    table.is_down = False
    theirs.set(KIND, "tenant:bank", new)
    await settle(theirs)
    with capture_logs() as logs:
        await settle(ours, theirs)
    expected = {} if new is None else {"tenant:bank": new}
    assert dict(ours.of(KIND)) == dict(theirs.of(KIND)) == expected
    assert [(entry["event"], entry["name"]) for entry in logs] == [("control_superseded", "tenant:bank")]


async def test_an_act_follows_all_that_its_replica_knows_even_by_a_slow_clock(table: Table, tmp_path: Path) -> None:
    ours, theirs = replica(table, tmp_path, "a", now=100.0), replica(table, tmp_path, "b", now=200.0)
    theirs.set(KIND, "tenant:bank", "stop")
    await settle(theirs, ours)
    ours.set(KIND, "tenant:bank", None)
    await settle(ours, theirs)
    assert dict(ours.of(KIND)) == dict(theirs.of(KIND)) == {}


async def test_an_old_stop_in_the_copy_ends_when_the_store_is_read(table: Table, tmp_path: Path) -> None:
    ours, theirs = replica(table, tmp_path, "a", now=100.0), replica(table, tmp_path, "b", now=200.0)
    table.is_down = True
    ours.set(KIND, EVERYTHING, "stop")
    await settle(ours)
    table.is_down = False
    theirs.set(KIND, EVERYTHING, None)
    await settle(theirs)
    again = replica(table, tmp_path, "a", now=300.0)
    assert dict(again.of(KIND)) == {EVERYTHING: "stop"}, "without the store it is the newest that is known"
    await settle(again)
    assert dict(again.of(KIND)) == {}


async def test_replicas_that_set_the_same_at_once_try_again(table: Table, tmp_path: Path) -> None:
    class Clashing(Table):
        num_clashes = 1

        def exchange(self, changes: Mapping[ControlKey, Control]) -> dict[ControlKey, Control]:
            if changes and self.num_clashes:
                self.num_clashes -= 1
                raise IntegrityError("INSERT", None, Exception("duplicate key"))
            return super().exchange(changes)

    ours, theirs = replica(Clashing(table._database), tmp_path, "a"), replica(table, tmp_path, "b")
    with capture_logs() as logs:
        ours.set(KIND, "tenant:bank", "1")
        await settle(ours)
    assert [entry["event"] for entry in logs] == ["controls_not_shared"]
    await settle(ours, theirs)
    assert dict(theirs.of(KIND)) == {"tenant:bank": "1"}


async def test_a_damaged_copy_is_unknown_until_the_store_is_read(table: Table, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{")
    table.is_down = True
    controls = replica(table, tmp_path, "a")
    switch = kill_switch(controls, tmp_path, "a")
    await settle(controls)
    assert (switch.status.on, switch.status.sources) == (True, ("store",))
    table.is_down = False
    await settle(controls)
    assert not switch.status.on


async def test_a_copy_that_cannot_be_written_is_reported(table: Table, tmp_path: Path) -> None:
    controls = replica(table, tmp_path / "a.json", "b")
    (tmp_path / "a.json").write_text("")
    assert "cannot be written" in controls.set(KIND, "tenant:bank", "1")
    await settle(controls)


class Raced(JsonFile[ControlCopy]):
    """A file that another server changes, if it can, just before this one writes."""

    def __init__(self, path: Path, race: Callable[[], object]) -> None:
        super().__init__(path, TypeAdapter(ControlCopy), absent=ControlCopy(), param="kill_file")
        self.other = Thread(target=race, daemon=True)

    def write(self, value: ControlCopy) -> None:
        self.other.start()
        self.other.join(0.2)  # it ends unless it waits for us
        super().write(value)


async def test_servers_without_a_store_that_act_at_once_keep_both_acts(tmp_path: Path) -> None:
    path = tmp_path / "controls.json"
    theirs = SharedControls(None, copy_file(path))
    raced = Raced(path, lambda: theirs.set(KIND, "tenant:bank", "1"))
    ours = SharedControls(None, raced)
    ours.set(KIND, "tenant:shop", "1")
    ended(raced.other)
    for one in (ours, theirs):
        await one.tick()
        assert dict(one.of(KIND)) == {"tenant:bank": "1", "tenant:shop": "1"}


async def test_servers_of_a_store_with_one_copy_keep_what_each_waits_to_store(table: Table, tmp_path: Path) -> None:
    ours, theirs = replica(table, tmp_path), replica(table, tmp_path)
    table.is_down = True
    ours.set(KIND, "tenant:bank", "1")
    theirs.set(KIND, "tenant:shop", "1")
    await settle(ours, theirs)
    again = replica(table, tmp_path)
    assert dict(again.of(KIND)) == {"tenant:bank": "1", "tenant:shop": "1"}
    table.is_down = False
    await settle(ours)
    assert [name for _, name, _, _ in copy_file(tmp_path / "a.json").read().pending] == ["tenant:shop"]
    await settle(theirs, ours, again)
    assert dict(ours.of(KIND)) == dict(again.of(KIND)) == {"tenant:bank": "1", "tenant:shop": "1"}
    assert copy_file(tmp_path / "a.json").read().pending == ()


def kill_switch(
    controls: SharedControls, folder: Path, name: str, killed: list[frozenset[str]] | None = None
) -> KillSwitch:
    kill = killed.append if killed is not None else lambda scopes: None
    return KillSwitch(kill_file(folder / f"kill-{name}.json"), kill, CollectorRegistry(), shared=controls)


async def test_a_kill_by_scope_reaches_all_replicas_and_any_of_them_lifts_it(table: Table, tmp_path: Path) -> None:
    ours, theirs = replica(table, tmp_path, "a"), replica(table, tmp_path, "b")
    here, there = list[frozenset[str]](), list[frozenset[str]]()
    one, other = kill_switch(ours, tmp_path, "a", here), kill_switch(theirs, tmp_path, "b", there)
    one.turn(on=True, by="kim", reason="drill", scope="tenant:bank")
    assert here == [{"tenant:bank"}]
    await settle(ours, theirs)
    assert there == [{"tenant:bank"}]
    assert [(entry.scope, entry.by) for entry in other.status.shared] == [("tenant:bank", "kim")]
    other.turn(on=False, by="bob", reason="", scope="tenant:bank")
    await settle(theirs, ours)
    assert here[-1] == there[-1] == frozenset()


@pytest.mark.parametrize("scope", [EVERYTHING, "tenant:bank"])
async def test_a_release_is_on_record_with_its_reason_and_its_author(table: Table, tmp_path: Path, scope: str) -> None:
    controls, audited = replica(table, tmp_path, "a"), list[AuditEvent]()
    file = kill_file(tmp_path / "kill-a.json")
    switch = KillSwitch(file, lambda scopes: None, CollectorRegistry(), shared=controls, emit=audited.append)
    switch.turn(on=True, by="kim", reason="odd drafts", scope=scope)
    switch.turn(on=True, by="bob", reason="another drill", scope=scope)
    [stopped] = switch.status.shared
    assert (stopped.by, stopped.reason) == ("kim", "odd drafts"), "the first reason stays"
    with capture_logs() as logs:
        switch.turn(on=False, by="ann", reason="over", scope=scope)
    [line] = [line for line in logs if line["event"] == "kill_switch"]
    assert (line["on"], line["scope"], line["by"], line["reason"]) == (False, scope, "ann", "over")
    first, second, released = audited
    assert [reason_of(one.before, one.after) for one in (first, second, released)] == [
        *("odd drafts", "another drill", "over")
    ]
    assert (released.action, released.actor) == ("kill.off", "ann")
    assert "reason over" in changed_fields(released.before, released.after)
    switch.turn(on=True, by="kim", reason="", scope=scope)
    assert switch.status.released is None
    await settle(controls)


async def test_a_release_in_the_file_is_logged_with_its_author(table: Table, tmp_path: Path) -> None:
    file, audited = kill_file(tmp_path / "kill-a.json"), list[AuditEvent]()
    entry = KilledScope(scope="tenant:bank", by="ann", reason="odd drafts", at=datetime(2026, 11, 21, tzinfo=UTC))
    file.write(NEVER_SET.turned(entry, on=True))
    switch = KillSwitch(file, lambda scopes: None, CollectorRegistry(), emit=audited.append)
    file.write(file.read().turned(entry.model_copy(update={"by": "bob", "reason": "over"}), on=False))
    with capture_logs() as logs:
        await switch.tick()
    [line] = [line for line in logs if line["event"] == "kill_switch"]
    assert (line["on"], line["by"], line["reason"]) == (False, "bob", "over")
    assert (audited[-1].actor, reason_of(audited[-1].before, audited[-1].after)) == ("bob", "over")


def sources(switch: KillSwitch) -> list[str]:
    return list(switch.status.sources)


async def test_whichever_says_stop_wins(table: Table, tmp_path: Path) -> None:
    ours, theirs = replica(table, tmp_path, "a"), replica(table, tmp_path, "b")
    file = kill_file(tmp_path / "kill-a.json")
    one, other = kill_switch(ours, tmp_path, "a"), kill_switch(theirs, tmp_path, "b")
    file.write(file.read().model_copy(update={"on": True}))
    await one.tick()
    other.turn(on=True, by="kim", reason="")
    await settle(theirs, ours)
    assert sources(one) == ["operator", "store"]
    other.turn(on=False, by="kim", reason="")
    await settle(theirs, ours)
    assert (sources(one), sources(other)) == (["operator"], [])
    one.turn(on=False, by="kim", reason="")
    assert not one.status.on, "where it is turned off, the file is too"
    assert not file.read().on


async def test_a_release_that_the_file_keeps_and_the_copy_does_not_is_reported(table: Table, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("")
    controls, file = replica(table, tmp_path / "a.json", "b"), kill_file(tmp_path / "kill-a.json")
    file.write(file.read().model_copy(update={"on": True}))
    switch = kill_switch(controls, tmp_path, "a")
    switch.turn(on=False, by="kim", reason="")
    assert not file.read().on
    assert "cannot be written" in (switch.status.not_saved or "")
    await settle(controls)


async def test_a_store_never_gets_more_scopes_than_it_may_hold(table: Table, tmp_path: Path) -> None:
    switch = kill_switch(replica(table, tmp_path), tmp_path, "a")
    for number in range(MAX_SCOPES):
        switch.turn(on=True, by="", reason="", scope=f"tenant:{number}")
    with pytest.raises(InvalidParameter, match="256 scopes"):
        switch.turn(on=True, by="", reason="", scope="tenant:more")
    switch.turn(on=True, by="", reason="")
    assert EVERYTHING in switch.status.killed


class Replica:
    """The breakers of one replica, and what its plan leaves out."""

    def __init__(self, controls: SharedControls, folder: Path, name: str) -> None:
        self.controls = controls
        self.counts = TrafficClassCounts("suffix", "chat")
        self.disabled: list[DisabledProposer] = []
        self.events: list[AuditEvent] = []
        self.feature = BreakerFeature(
            Breakers(BreakerSettings()),
            lambda: [self.counts],
            self._disable,
            CollectorRegistry(),
            file=breaker_file(folder / f"breakers-{name}.json"),
            shared=controls,
            emit=self.events.append,
        )

    def _disable(self, disabled: tuple[DisabledProposer, ...]) -> None:
        self.disabled = list(disabled)

    async def tick(self) -> None:
        await settle(self.controls)
        await self.feature.tick()

    @property
    def reasons(self) -> list[str]:
        return [str(event.after["reason"]) for event in self.events if isinstance(event.after, dict)]


@pytest.fixture
def pair(table: Table, tmp_path: Path) -> tuple[Replica, Replica]:
    return (
        Replica(replica(table, tmp_path, "a"), tmp_path, "a"),
        Replica(replica(table, tmp_path, "b"), tmp_path, "b"),
    )


OUT = [DisabledProposer("suffix", "chat")]


async def test_a_breaker_that_an_operator_sets_is_set_on_all_replicas(pair: tuple[Replica, Replica]) -> None:
    one, other = pair
    one.feature.set(("suffix", "chat"), "forced_open", "kim")
    for each in (one, other, one):
        await each.tick()
    assert one.disabled == other.disabled == OUT
    other.feature.set(("suffix", "chat"), "closed", "bob")
    for each in (other, one):
        await each.tick()
    assert one.disabled == other.disabled == []
    assert one.reasons == other.reasons == ["operator", "operator"]


async def test_a_breaker_forced_open_by_a_file_stays_open(pair: tuple[Replica, Replica], tmp_path: Path) -> None:
    one, other = pair
    path = tmp_path / "breakers-a.json"
    path.write_text('[{"proposer": "suffix", "traffic_class": "chat", "state": "forced_open", "by": "ann"}]')
    await one.tick()
    other.feature.set(("suffix", "chat"), "forced_closed", "bob")
    for each in (other, one):
        await each.tick()
    assert one.disabled == OUT
    one.feature.set(("suffix", "chat"), "closed", "kim")
    await one.tick()
    assert one.disabled == []
    assert path.read_text().strip() == "[]"


async def test_a_breaker_that_opens_by_itself_opens_on_all_and_is_not_sent_back(pair: tuple[Replica, Replica]) -> None:
    one, other = pair
    for each in pair:
        await each.tick()
    one.counts = TrafficClassCounts("suffix", "chat", num_overdue=1)
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
    one.counts = TrafficClassCounts("suffix", "chat", num_judged=500, tenants=(useless,))
    for each in (one, one, other, one, other):
        await each.tick()
    expected = DisabledProposer("suffix", "chat", tenants=frozenset({tenant}))
    assert (one.disabled, other.disabled) == ([replace(expected, compared=True)], [expected])
    one.counts = replace(one.counts, num_overdue=1)
    for each in (one, one, other, one, other):
        await each.tick()
    assert one.disabled == other.disabled == OUT
