"""What one server sets, all follow: through the file on one machine, through the store on all."""

import asyncio
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Event, Thread

import pytest
from structlog.testing import capture_logs

from prolepsis.control.controls.controls import PATIENCE_S, TICKS_PER_EXCHANGE, Controls, Origin
from prolepsis.control.controls.file import ControlsContent, ControlsFile, Section
from prolepsis.control.controls.kill_switch import KILL
from prolepsis.control.store.controls import Control, ControlKey, ControlTable, control_key
from prolepsis.control.store.database import Database
from prolepsis.control.store.migrate import migrated_in_memory
from prolepsis.core.errors import ConfigError, StoreUnavailable
from prolepsis.core.kill_scope import EVERYTHING
from tests.waiting import ended


class Table(ControlTable):
    """A store that may be down."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.is_shared = True
        self.is_down = False
        self.is_read_only = False
        self.num_exchanges = 0
        self.waits_for: Event | None = None

    def put(self, changes: Mapping[ControlKey, Control]) -> dict[ControlKey, str]:
        if self.is_read_only:
            raise StoreUnavailable("read-only")
        return super().put(changes) if not self.is_down else {}

    def read(self) -> dict[ControlKey, Control]:
        self.num_exchanges += 1
        if self.waits_for is not None:
            self.waits_for.wait(30)
        if self.is_down:
            raise StoreUnavailable("down")
        return super().read()


class Named(Table):
    name = "other"


@pytest.fixture
def table() -> Table:
    return Table(migrated_in_memory())


def server(table: ControlTable | None, folder: Path, name: str = "a", *, now: float | None = None) -> Controls:
    """Return the controls of a server with a file of that name; `now` stops its clock."""
    clock = time.time if now is None else lambda: now
    table = table or ControlTable(migrated_in_memory())
    return Controls(ControlsFile(folder / f"{name}.json"), table, now=clock)


def values(controls: Controls, kind: str = KILL) -> dict[str, str | None]:
    return {name: control.value for name, control in controls.of(kind).items()}


def waiting(folder: Path, table: ControlTable) -> Section:
    return ControlsFile(folder / "a.json").read().of_store(table.name).pending


async def settle(*controls: Controls) -> None:
    for _ in range(2):
        await asyncio.gather(*(one.tick() for one in controls))
        await asyncio.gather(*(one.share() for one in controls))


@pytest.mark.parametrize("is_shared", [False, True])
async def test_all_servers_follow_a_change(table: Table, tmp_path: Path, is_shared: bool) -> None:
    ours = server(table if is_shared else None, tmp_path)
    theirs = server(table if is_shared else None, tmp_path, "b" if is_shared else "a")
    seen: list[tuple[Origin, dict[str, str | None]]] = []
    theirs.follow(KILL, lambda origin: seen.append((origin, values(theirs))))
    ours.set(KILL, "tenant:bank", "1", by="kim", reason="drill")
    assert values(ours) == {"tenant:bank": "1"}
    await settle(ours, theirs)
    ours.set("breaker", "x", "2")
    await settle(ours, theirs)
    found = theirs.of(KILL)["tenant:bank"]
    assert (found.by, found.reason) == ("kim", "drill")
    theirs.set(KILL, "tenant:bank", None)
    await settle(theirs, ours)
    origin: Origin = "store" if is_shared else "file"
    assert seen == [("start", {}), (origin, {"tenant:bank": "1"}), ("act", {})]
    assert (values(ours), values(ours, "breaker")) == ({}, {"x": "2"})


async def test_a_follower_that_fails_is_notified_again_until_it_succeeds(tmp_path: Path) -> None:
    controls, seen = server(None, tmp_path), list[Origin]()
    faults = [False, True, True, False]

    def failing(origin: Origin) -> None:
        if faults.pop(0):
            raise RuntimeError("odd")
        seen.append(origin)

    controls.follow(KILL, failing)
    controls.follow("breaker", seen.append)
    ControlsFile(tmp_path / "a.json").set(control_key(KILL, "tenant:bank"), Control("1", 1.0))
    ControlsFile(tmp_path / "a.json").set(control_key("breaker", "x"), Control("1", 1.0))
    with capture_logs() as logs:
        for _ in range(4):
            await controls.tick()
    assert seen == ["start", "start", "file", "file"], "each once"
    assert [(entry["event"], entry["exc_info"]) for entry in logs] == [("controls_not_followed", True)]


async def test_while_the_store_is_away_it_holds_here_and_over_a_restart(table: Table, tmp_path: Path) -> None:
    ours, theirs = server(table, tmp_path, "a"), server(table, tmp_path, "b")
    theirs.set(KILL, "rule:old", "0")
    await settle(theirs, ours)
    table.is_down = True
    ours.set(KILL, "tenant:bank", "1")
    ours.set(KILL, "rule:old", None)
    await settle(ours, theirs)
    again = server(table, tmp_path, "a")
    await settle(again)
    assert values(again) == {"tenant:bank": "1"}
    assert values(theirs) == {"rule:old": "0"}
    table.is_down = False
    await settle(again, theirs)
    assert values(again) == values(theirs) == {"tenant:bank": "1"}
    assert waiting(tmp_path, table) == {}


@pytest.mark.parametrize(("old", "new"), [("stop", None), (None, "stop"), ("stop", "other")])
async def test_a_change_that_waited_for_the_store_does_not_undo_later_changes(
    table: Table, tmp_path: Path, old: str | None, new: str | None
) -> None:
    ours, theirs = server(table, tmp_path, "a", now=100.0), server(table, tmp_path, "b", now=200.0)
    theirs.set(KILL, "tenant:bank", "first")
    table.is_down = True
    ours.set(KILL, "tenant:bank", old)
    await settle(ours)
    table.is_down = False
    theirs.set(KILL, "tenant:bank", new)
    await settle(theirs)
    with capture_logs() as logs:
        await settle(ours, theirs)
    assert values(ours) == values(theirs) == ({} if new is None else {"tenant:bank": new})
    assert [(entry["event"], entry["control"]) for entry in logs] == [("control_superseded", "kill tenant:bank")]


async def test_a_store_that_hangs_delays_no_stop_of_the_file(table: Table, tmp_path: Path) -> None:
    released, controls = Event(), server(table, tmp_path)
    await controls.tick()
    table.waits_for = released
    try:
        for number in range(2 * TICKS_PER_EXCHANGE):
            ControlsFile(tmp_path / "a.json").set(control_key(KILL, f"tenant:{number}"), Control("1", 1.0))
            began = time.monotonic()
            await controls.tick()
            assert f"tenant:{number}" in values(controls)
            assert time.monotonic() - began < PATIENCE_S
    finally:
        released.set()
    await controls.share()


async def test_the_store_is_read_at_the_start_and_every_fourth_tick(table: Table, tmp_path: Path) -> None:
    ours, theirs = server(table, tmp_path, "a"), server(table, tmp_path, "b")
    theirs.set(KILL, "tenant:bank", "1")
    await theirs.share()
    await ours.tick()
    assert values(ours) == {"tenant:bank": "1"}, "before it serves"
    num_read = table.num_exchanges
    for _ in range(2 * TICKS_PER_EXCHANGE):
        await ours.tick()
        if ours._running is not None:
            await ours._running
    assert table.num_exchanges - num_read == 2


async def test_an_act_follows_all_that_its_server_knows_even_by_a_slow_clock(table: Table, tmp_path: Path) -> None:
    ours, theirs = server(table, tmp_path, "a", now=100.0), server(table, tmp_path, "b", now=200.0)
    theirs.set(KILL, "tenant:bank", "stop")
    await settle(theirs, ours)
    ours.set(KILL, "tenant:bank", None)
    await settle(ours, theirs)
    assert values(ours) == values(theirs) == {}


async def test_an_act_that_the_store_refuses_holds_here_and_blocks_no_other(tmp_path: Path) -> None:
    class Refusing(Table):
        def _refusal(self, changes: Mapping[ControlKey, Control]) -> str:
            return "DataError" if "kill rule:odd" in changes else super()._refusal(changes)

    table = Refusing(migrated_in_memory())
    ours, theirs = server(table, tmp_path, "a"), server(table, tmp_path, "b")
    table.is_down = True
    ours.set(KILL, "tenant:bank", "1")
    ours.set(KILL, "rule:odd", "1")
    await settle(ours)
    table.is_down = False
    theirs.set(KILL, "tenant:shop", "1")
    with capture_logs() as logs:
        await settle(theirs, ours)
        await settle(theirs, ours)
    assert [(entry["event"], entry["control"]) for entry in logs] == [("control_refused", "kill rule:odd")]
    assert values(ours) == {"tenant:bank": "1", "tenant:shop": "1", "rule:odd": "1"}
    assert values(theirs) == {"tenant:bank": "1", "tenant:shop": "1"}
    ours.set(KILL, "rule:odd", None)
    await settle(ours)
    assert values(ours) == values(theirs)


async def test_an_act_that_the_store_refuses_is_saved_though_the_store_goes_away(tmp_path: Path) -> None:
    class Going(Table):
        def put(self, changes: Mapping[ControlKey, Control]) -> dict[ControlKey, str]:
            self.is_down = True
            return dict.fromkeys(changes, "DataError")

    controls = server(Going(migrated_in_memory()), tmp_path)
    controls.set(KILL, "rule:odd", "1")
    await controls.share()
    assert "kill rule:odd" in ControlsFile(tmp_path / "a.json").read().local
    assert waiting(tmp_path, controls._table) == {}


async def test_a_store_that_cannot_be_written_is_read(table: Table, tmp_path: Path) -> None:
    ours, theirs = server(table, tmp_path, "a"), server(table, tmp_path, "b")
    theirs.set(KILL, "tenant:shop", "1")
    await settle(theirs)
    table.is_read_only = True
    with capture_logs() as logs:
        ours.set(KILL, "tenant:bank", "1")
        await settle(ours)
    assert values(ours) == {"tenant:bank": "1", "tenant:shop": "1"}
    assert [(entry["event"], entry["error"]) for entry in logs] == [("controls_not_shared", "read-only")]
    table.is_read_only = False
    await settle(ours, theirs)
    assert values(theirs) == {"tenant:bank": "1", "tenant:shop": "1"}


async def test_an_old_stop_in_the_copy_ends_when_the_store_is_read(table: Table, tmp_path: Path) -> None:
    ours, theirs = server(table, tmp_path, "a", now=100.0), server(table, tmp_path, "b", now=200.0)
    table.is_down = True
    ours.set(KILL, EVERYTHING, "stop")
    await settle(ours)
    table.is_down = False
    theirs.set(KILL, EVERYTHING, None)
    await settle(theirs)
    again = server(table, tmp_path, "a", now=300.0)
    assert values(again) == {EVERYTHING: "stop"}, "without the store it is the newest that is known"
    await settle(again)
    assert values(again) == {}


async def test_replicas_that_set_the_same_at_once_try_again(table: Table, tmp_path: Path) -> None:
    class Clashing(Table):
        num_clashes = 1

        def _refusal(self, changes: Mapping[ControlKey, Control]) -> str:
            self.num_clashes -= 1
            return "IntegrityError" if self.num_clashes >= 0 else super()._refusal(changes)

    ours, theirs = server(Clashing(table._database), tmp_path, "a"), server(table, tmp_path, "b")
    with capture_logs() as logs:
        ours.set(KILL, "tenant:bank", "1")
        await settle(ours)
    assert logs == []
    await settle(theirs)
    assert values(theirs) == {"tenant:bank": "1"}


ENDLESS = '{"local": {"kill rule:x": {"value": null, "at": 1e999}}}'
"""No later act would count more."""


@pytest.mark.parametrize(
    "text", [ENDLESS, "{", "[]", '{"local": {"kill everything": {"value": 1}}}', '{"kill": {}}', "\x00"]
)
@pytest.mark.parametrize("is_shared", [False, True])
async def test_a_file_that_is_damaged_at_the_start_stops_everything_until_an_operator_releases_it(
    table: Table, tmp_path: Path, text: str, is_shared: bool
) -> None:
    (tmp_path / "a.json").write_text(text)
    controls = server(table if is_shared else None, tmp_path)
    assert "is damaged" in (controls.fault or "")
    await settle(controls)
    [stopped] = server(table if is_shared else None, tmp_path).of(KILL).values()
    assert "is damaged" in stopped.reason, "after a restart too"
    assert controls.set(KILL, EVERYTHING, None) == ""
    await settle(controls)
    assert controls.fault is None
    assert values(controls) == values(server(None, tmp_path)) == {}
    assert (tmp_path / "a.json.damaged").read_text() == text


async def test_a_file_that_is_damaged_later_changes_nothing_and_is_replaced_by_the_next_act(tmp_path: Path) -> None:
    controls = server(None, tmp_path)
    controls.set(KILL, "tenant:bank", "1")
    (tmp_path / "a.json").write_text("{")
    await controls.tick()
    assert "is damaged" in (controls.fault or "")
    controls.set(KILL, "tenant:shop", "1")
    assert controls.fault is None
    assert values(server(None, tmp_path)) == {"tenant:bank": "1", "tenant:shop": "1"}


@pytest.mark.parametrize("is_shared", [False, True])
async def test_a_file_that_cannot_be_written_is_reported(table: Table, tmp_path: Path, is_shared: bool) -> None:
    controls = server(table if is_shared else None, tmp_path / "a.json", "b")
    (tmp_path / "a.json").write_text("")
    assert "cannot be written" in controls.set(KILL, "tenant:bank", "1")
    assert values(controls)["tenant:bank"] == "1"
    await settle(controls)


async def test_an_act_that_could_not_be_saved_holds_while_others_change_the_file(tmp_path: Path) -> None:
    file = Full(tmp_path / "a.json")
    controls = Controls(file, ControlTable(migrated_in_memory()), now=lambda: 50.0)
    assert controls.set(KILL, "tenant:bank", "1") == controls.not_saved == "no space"
    ControlsFile(file.path).set(control_key(KILL, "tenant:shop"), Control("1", 1.0))
    with capture_logs() as logs:
        await controls.tick()
        await controls.tick()
    assert (values(controls), logs) == ({"tenant:bank": "1", "tenant:shop": "1"}, [])
    file.is_full = False
    await controls.tick()
    assert controls.not_saved is None
    assert values(server(None, tmp_path)) == values(controls)


async def test_an_act_is_saved_as_soon_as_the_store_has_it(table: Table, tmp_path: Path) -> None:
    controls = Controls(Full(tmp_path / "a.json"), table)
    table.is_down = True
    controls.set(KILL, "tenant:bank", "1")
    await settle(controls)
    assert controls.not_saved == "no space"
    table.is_down = False
    await settle(controls)
    assert controls.not_saved is None


async def test_a_later_act_in_the_file_counts_more_than_one_that_could_not_be_saved(tmp_path: Path) -> None:
    file = Full(tmp_path / "a.json")
    controls = Controls(file, ControlTable(migrated_in_memory()))
    controls.set(KILL, "tenant:bank", "1")
    ControlsFile(file.path).set(control_key(KILL, "tenant:bank"), Control(None, time.time() + 10.0))
    await controls.tick()
    assert values(controls) == {}
    file.is_full = False
    await controls.tick()
    assert values(server(None, tmp_path)) == {}


def test_it_is_kept_with_the_users_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROLEPSIS_DATA", "/srv/prolepsis")
    assert ControlsFile().path == Path("/srv/prolepsis/controls.json")


class Full(ControlsFile):
    is_full = True

    def write(self, value: ControlsContent) -> None:
        if self.is_full:
            raise ConfigError("no space", param="controls_file")
        super().write(value)


class Raced(ControlsFile):
    """A file that another server changes, if it can, just before this one writes."""

    def __init__(self, path: Path, race: Callable[[], object]) -> None:
        super().__init__(path)
        self.other = Thread(target=race, daemon=True)

    def write(self, value: ControlsContent) -> None:
        self.other.start()
        self.other.join(0.2)  # it ends unless it waits for us
        super().write(value)


async def test_servers_of_one_file_that_act_at_once_keep_both_acts(tmp_path: Path) -> None:
    theirs = server(None, tmp_path)
    raced = Raced(tmp_path / "a.json", lambda: theirs.set(KILL, "tenant:bank", "1"))
    ours = Controls(raced, ControlTable(migrated_in_memory()))
    ours.set(KILL, "tenant:shop", "1")
    ended(raced.other)
    for one in (ours, theirs):
        await one.tick()
        assert values(one) == {"tenant:bank": "1", "tenant:shop": "1"}


async def test_servers_of_a_store_with_one_file_keep_what_each_waits_to_store(table: Table, tmp_path: Path) -> None:
    ours, theirs = server(table, tmp_path), server(table, tmp_path)
    table.is_down = True
    ours.set(KILL, "tenant:bank", "1")
    theirs.set(KILL, "tenant:shop", "1")
    await settle(ours, theirs)
    again = server(table, tmp_path)
    assert values(again) == {"tenant:bank": "1", "tenant:shop": "1"}
    table.is_down = False
    await settle(ours)
    await settle(theirs, ours, again)
    assert values(ours) == values(again) == {"tenant:bank": "1", "tenant:shop": "1"}
    assert waiting(tmp_path, table) == {}


async def test_servers_of_other_stores_leave_what_a_store_says_alone(table: Table, tmp_path: Path) -> None:
    other = Named(migrated_in_memory())
    ours, theirs, alone = server(table, tmp_path), server(other, tmp_path), server(None, tmp_path)
    theirs.set(KILL, "tenant:bank", "1")
    await settle(theirs)
    other.is_down = table.is_down = True
    theirs.set(KILL, "rule:fast", "1")
    ours.set(KILL, "tenant:shop", "1")
    alone.set("breaker", "x", "1")
    table.is_down = False
    await settle(ours, alone, theirs)
    assert values(ours) == values(server(table, tmp_path)) == {"tenant:shop": "1"}
    assert values(theirs) == values(server(other, tmp_path)) == {"tenant:bank": "1", "rule:fast": "1"}
    assert values(alone) == values(server(None, tmp_path)) == {}
    assert list(table.read()) == ["kill tenant:shop"]


async def test_a_server_takes_over_what_another_waits_to_store(table: Table, tmp_path: Path) -> None:
    ours, theirs = server(table, tmp_path), server(table, tmp_path)
    await settle(ours, theirs)
    table.is_down = True
    theirs.set(KILL, "tenant:bank", "1")
    await theirs.share()
    await ours.tick()
    assert values(ours) == {"tenant:bank": "1"}
    ours.set(KILL, "tenant:bank", None)
    await theirs.tick()
    assert values(theirs) == {}, "the newest counts"
    theirs.set(KILL, "tenant:bank", "2")
    await ours.tick()
    table.is_down = False
    await ours.share()
    assert table.read()["kill tenant:bank"].value == "2", "also where the other has ended"
    await settle(theirs, ours)
    assert waiting(tmp_path, table) == {}


async def test_what_a_command_sets_on_a_machine_holds_there_until_it_is_removed_there(
    table: Table, tmp_path: Path
) -> None:
    ours, theirs = server(table, tmp_path, "a"), server(table, tmp_path, "b")
    ControlsFile(tmp_path / "a.json").set(control_key(KILL, EVERYTHING), Control("stop", 1.0))
    await settle(ours, theirs)
    assert (values(ours), values(theirs)) == ({EVERYTHING: "stop"}, {})
    theirs.set(KILL, EVERYTHING, None)
    await settle(theirs, ours)
    assert values(ours) == {EVERYTHING: "stop"}
    ours.set(KILL, EVERYTHING, None)
    await settle(ours)
    assert values(ours) == values(server(table, tmp_path, "a")) == {}
