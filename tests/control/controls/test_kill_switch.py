"""The kill switch follows its controls: on one machine, on all replicas, and with a flag beside them."""

import math
from datetime import UTC, datetime
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from prolepsis.control.audit.summary import changed_fields, reason_of
from prolepsis.control.controls.controls import Controls
from prolepsis.control.controls.effective_plan import EffectivePlan
from prolepsis.control.controls.file import ControlsFile
from prolepsis.control.controls.kill_switch import KILL, MAX_SCOPES, NOT_UNDERSTOOD, act, kill_status
from prolepsis.control.controls.kill_switch_runtime import KillSwitch
from prolepsis.control.controls.known_scopes import ANYTHING, KnownScopes
from prolepsis.control.store.controls import Control, control_key
from prolepsis.control.store.migrate import migrated_in_memory
from prolepsis.core.audit_event import AuditEvent
from prolepsis.core.errors import InvalidParameter
from prolepsis.core.kill_scope import EVERYTHING
from prolepsis.core.plan import DisabledProposer, SpecPlan
from prolepsis.server.admission.load_shedding import PLAIN, SHALLOW, plan_at
from tests.control.controls.test_controls import Table, server, settle

BASE = SpecPlan(version=3, num_speculative_tokens=8)
NOW = datetime(2026, 11, 21, 10, tzinfo=UTC)


class Stops:
    """The kill switch of one server, what it stopped, and its audit events."""

    def __init__(self, controls: Controls) -> None:
        self.controls = controls
        self.killed: list[frozenset[str]] = []
        self.events: list[AuditEvent] = []
        self.switch = KillSwitch(controls, self.killed.append, CollectorRegistry(), emit=self.events.append)

    def turn(self, scope: str = EVERYTHING, *, on: bool = True, by: str = "kim", reason: str = "drill") -> None:
        self.switch.turn(on=on, by=by, reason=reason, scope=scope)

    @property
    def sources(self) -> list[str]:
        return list(self.switch.status.sources)


@pytest.fixture
def table() -> Table:
    return Table(migrated_in_memory())


@pytest.fixture
def pair(table: Table, tmp_path: Path) -> tuple[Stops, Stops]:
    return Stops(server(table, tmp_path, "a")), Stops(server(table, tmp_path, "b"))


def command(file: Path, scope: str, *, on: bool, by: str = "ann", reason: str = "") -> None:
    """Turn a scope as the command does where no server runs."""
    known = kill_status(server(None, file.parent, file.stem).local(KILL), {})
    control = act(known, scope, on=on, by=by, reason=reason, at=datetime.now(UTC))
    ControlsFile(file).set(control_key(KILL, scope), control)


def test_scopes_are_turned_one_by_one_and_the_last_release_is_known(tmp_path: Path) -> None:
    stops = Stops(server(None, tmp_path))
    stops.turn("tenant:bank")
    stops.turn("rule:fast")
    assert not stops.switch.status.on
    assert stops.killed[-1] == {"tenant:bank", "rule:fast"}
    stops.turn()
    stops.turn("tenant:bank", on=False, by="bob", reason="over")
    assert stops.killed[-1] == {EVERYTHING, "rule:fast"}
    released = stops.switch.status.released
    assert released is not None
    assert (released.scope, released.by, released.reason) == ("tenant:bank", "bob", "over")
    stops.turn("tenant:bank")
    stops.turn(on=False)
    assert stops.killed[-1] == {"tenant:bank", "rule:fast"}


def test_there_is_a_limit_of_scopes_besides_everything(tmp_path: Path) -> None:
    stopped = {f"tenant:{number}": Control(NOW.isoformat(), 1.0) for number in range(MAX_SCOPES)}
    known = kill_status(stopped, {})
    with pytest.raises(InvalidParameter, match=f"{MAX_SCOPES} scopes are stopped already"):
        act(known, "tenant:more", on=True, by="", reason="", at=NOW)
    for scope in (EVERYTHING, "tenant:7"):
        assert act(known, scope, on=True, by="", reason="", at=NOW).value is not None


def test_a_stop_that_is_not_understood_stops_everything() -> None:
    status = kill_status({}, {"team:x": Control("of a later version", 1.0)})
    assert (status.killed, status.sources, status.shared[0].reason) == ((EVERYTHING,), ("store",), NOT_UNDERSTOOD)


@pytest.mark.parametrize("at", [1e20, 1e300, math.inf, math.nan, -1e12])
@pytest.mark.parametrize("value", ["", "1"])
def test_a_stop_at_a_time_that_no_calendar_has_stops_everything(at: float, value: str) -> None:
    assert kill_status({"tenant:bank": Control(value, at)}, {}).killed == (EVERYTHING,)
    assert kill_status({"tenant:bank": Control(None, at)}, {}).released is None
    assert kill_status({"tenant:bank": Control(NOW.isoformat(), at)}, {}).killed == ("tenant:bank",)


async def test_a_stop_that_the_engine_did_not_take_is_sent_again(tmp_path: Path) -> None:
    controls, faults, killed = server(None, tmp_path), [OSError("gone")], list[frozenset[str]]()

    def kill(scopes: frozenset[str]) -> None:
        if faults:
            raise faults.pop()
        killed.append(scopes)

    switch = KillSwitch(controls, EffectivePlan(BASE, lambda plan: kill(plan.killed)).kill, CollectorRegistry())
    switch.turn(on=True, by="kim", reason="drill", scope="tenant:bank")
    assert switch.status.killed == (), "it says what holds"
    await controls.tick()
    assert killed == [{*switch.status.killed}] == [{"tenant:bank"}]


async def test_a_stop_reaches_all_replicas_and_any_of_them_lifts_it(pair: tuple[Stops, Stops]) -> None:
    one, other = pair
    one.turn("tenant:bank")
    assert one.killed == [{"tenant:bank"}]
    await settle(one.controls, other.controls)
    assert other.killed == [{"tenant:bank"}]
    assert [(entry.scope, entry.by) for entry in other.switch.status.shared] == [("tenant:bank", "kim")]
    other.turn("tenant:bank", on=False)
    await settle(other.controls, one.controls)
    assert one.killed[-1] == other.killed[-1] == frozenset()


@pytest.mark.parametrize("scope", [EVERYTHING, "tenant:bank"])
async def test_a_release_is_on_record_with_its_reason_and_its_author(pair: tuple[Stops, Stops], scope: str) -> None:
    stops, _ = pair
    stops.turn(scope, reason="odd drafts")
    since = stops.switch.status.shared[0].at
    stops.turn(scope, by="bob", reason="another drill")
    [stopped] = stops.switch.status.shared
    assert (stopped.by, stopped.reason, stopped.at) == ("kim", "odd drafts", since), "the first reason stays"
    with capture_logs() as logs:
        stops.turn(scope, on=False, by="ann", reason="over")
    [line] = [line for line in logs if line["event"] == "kill_switch"]
    assert (line["on"], line["scope"], line["by"], line["reason"]) == (False, scope, "ann", "over")
    reasons = [reason_of(event.before, event.after) for event in stops.events]
    assert reasons == ["odd drafts", "another drill", "over"]
    released = stops.events[-1]
    assert (released.action, released.actor) == ("kill.off", "ann")
    assert "reason over" in changed_fields(released.before, released.after)
    stops.turn(scope, reason="")
    assert stops.switch.status.released is None
    stops.turn(scope, by="bob", reason="odd drafts")
    assert stops.switch.status.shared[0].by == "bob", "the first one had no reason"
    await settle(stops.controls)


async def test_what_a_command_turns_is_logged_and_recorded_with_its_author(table: Table, tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    command(file, "tenant:bank", on=True, reason="odd drafts")
    stops = Stops(server(table, tmp_path))
    assert [(event.action, event.actor) for event in stops.events] == [("kill.on", "ann")]
    command(file, "tenant:bank", on=False, by="bob", reason="over")
    with capture_logs() as logs:
        await stops.controls.tick()
    [line] = [line for line in logs if line["event"] == "kill_switch"]
    assert (line["on"], line["by"], line["reason"]) == (False, "bob", "over")
    last = stops.events[-1]
    assert (last.action, last.actor, last.subject, reason_of(last.before, last.after)) == (
        *("kill.off", "bob"),
        *(str(file), "over"),
    )
    for number in range(2):
        command(file, EVERYTHING, on=True)
        command(file, "rule:fast", on=True, by="eve", reason=f"drill {number}")
        await stops.controls.tick()
        assert (stops.events[-1].action, stops.events[-1].actor) == ("kill.on", "eve"), "also where nothing changes"
    command(file, "rule:fast", on=False, by="eve")
    await stops.controls.tick()
    assert stops.events[-1].action == "kill.off", "though everything is stopped"
    file.unlink()
    await stops.controls.tick()
    assert stops.killed[-1] == frozenset()


async def test_any_source_stops(pair: tuple[Stops, Stops], tmp_path: Path) -> None:
    one, other = pair
    command(tmp_path / "a.json", EVERYTHING, on=True)
    await one.controls.tick()
    other.turn()
    await settle(other.controls, one.controls)
    assert one.sources == ["operator", "store"]
    other.turn(on=False)
    await settle(other.controls, one.controls)
    assert (one.sources, other.sources) == (["operator"], [])
    one.turn(on=False)
    assert one.sources == [], "where it is turned off, the file is too"
    assert kill_status(server(None, tmp_path, "a").local(KILL), {}).killed == ()


async def test_a_release_that_cannot_be_saved_is_reported(table: Table, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("")
    stops = Stops(server(table, tmp_path / "a.json", "b"))
    stops.turn(on=False)
    assert "cannot be written" in (stops.switch.shown.not_saved or "")
    await settle(stops.controls)


KNOWN = KnownScopes(
    names={"tenant": lambda: {"bank", "shop"}, "rule": tuple, "traffic_class": lambda: ["chat-completions/standard"]}
)


@pytest.mark.parametrize(
    ("scope", "warning"),
    [
        ("everything", ""),
        ("tenant:bank", ""),
        ("tenant:bnak", "nothing on this server has the scope tenant:bnak now; its tenants: bank, shop"),
        ("rule:fast", "nothing on this server has the scope rule:fast now; its rules: none"),
        ("traffic_class:chat-completions/standard/free/short", ""),
        (
            "traffic_class:chat/standard/free/short",
            "nothing on this server has the scope traffic_class:chat/standard/free/short now; "
            "its traffic classes: chat-completions/standard",
        ),
        ("route:/v1/completions", ""),  # not checked
    ],
)
def test_a_scope_that_nothing_has_is_named_with_what_there_is(scope: str, warning: str) -> None:
    assert KNOWN.warning(scope) == warning


def test_many_names_are_cut() -> None:
    many = KnownScopes(names={"tenant": lambda: [f"t{number:02}" for number in range(14)]})
    assert many.warning("tenant:x").endswith("t10, t11 and 2 more")
    assert not ANYTHING.warning("tenant:x")


OUT = (DisabledProposer("head", "chat"),)


def test_each_has_its_say_and_the_kill_switch_the_last_word() -> None:
    applied: list[SpecPlan] = []
    plan = EffectivePlan(BASE, applied.append)
    plan.disable(OUT)
    plan.shed(plan_at(SHALLOW, BASE, 99))
    plan.kill(frozenset({EVERYTHING, "tenant:bank"}))
    plan.shed(plan_at(PLAIN, BASE, 99))
    plan.disable(())
    plan.kill(frozenset({"tenant:bank"}))
    assert applied[-1].killed == {"tenant:bank"}
    plan.kill(frozenset())
    assert [(p.version, p.num_speculative_tokens, p.reason, p.disabled) for p in applied] == [
        (4, 8, "default", OUT),
        (5, 2, "overload_shallow", OUT),
        (6, 0, "killed", ()),
        (7, 0, "killed", ()),
        (8, 0, "killed", ()),
        (9, 0, "overload_plain", ()),
        (10, 0, "overload_plain", ()),
    ]


def test_no_plan_is_applied_without_a_change() -> None:
    applied: list[SpecPlan] = []
    plan = EffectivePlan(BASE, applied.append)
    plan.disable(())
    plan.kill(frozenset())
    assert applied == []
