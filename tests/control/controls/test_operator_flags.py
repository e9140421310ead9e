"""Flags that operators set: for all replicas, next to a provider, and without store, file or provider too."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs
from typer.testing import CliRunner

from prolepsis.control.controls.controls import Controls
from prolepsis.control.controls.flag_file import ENABLED, KILL, FlagFile
from prolepsis.control.controls.operator_flags import MAX_FLAGS, OperatorFlags, plain_definition, stricter
from prolepsis.control.store.controls import Control, ControlTable, control_key
from prolepsis.control.store.store import Store
from prolepsis.core.config import LimitTerms, ServerConfig
from prolepsis.core.errors import InvalidParameter
from prolepsis.core.facts import FlagDecision, RequestFacts
from prolepsis.core.telemetry.metrics import Metrics
from prolepsis.server.cli.main import app as commands
from tests.control.controls.flag_files import flag, write
from tests.control.controls.test_controls import Table, settle
from tests.control.controls.test_controls import server as server_controls
from tests.control.rollout.stores import memory_database
from tests.server.application import build
from tests.server.conftest import served
from tests.server.fakes import ByteTokenizer, FakeEngine

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
BANK, SHOP = RequestFacts(tenant="bank"), RequestFacts(tenant="shop")


class Server:
    def __init__(
        self, http: httpx.AsyncClient, engine: FakeEngine, tick: Callable[[], Any], killed: Callable[[], bool]
    ) -> None:
        self.http, self.engine, self.tick, self.killed = http, engine, tick, killed

    async def set(self, flag: str, **body: object) -> Any:
        reply = await self.http.put("/admin/flags", json={"flag": flag, **body})
        await self.tick()
        return reply.json() if reply.status_code == 200 else reply.json()["error"]["message"]

    async def remove(self, flag: str) -> None:
        reply = await self.http.delete("/admin/flags", params={"flag": flag})
        assert reply.status_code == 200, reply.text
        await self.tick()

    async def effective(self) -> tuple[bool, str]:
        """Return whether a flag turned speculation off for a request, and the header of its reply."""
        reply = await self.http.post("/v1/chat/completions", json=CHAT)
        return self.engine.requests[-1].speculation.off_reason == "flag_off", reply.headers["x-spec-effective"]


@asynccontextmanager
async def server(
    folder: Path, flags: Path | None = None, store: Store | None = None, name: str = "kill"
) -> AsyncIterator[Server]:
    provider = FlagFile(flags) if flags is not None else None
    config = ServerConfig(controls_file=folder / name / "controls.json", limits=LimitTerms(start_drafts=0))
    (folder / name).mkdir(exist_ok=True)
    engine = FakeEngine()
    app = build(config, engine, ByteTokenizer(), Metrics(), flags=provider, store=store)

    async def tick() -> None:
        for _ in range(2):
            for feature in app.state.features:
                if feature.name in ("controls", "flags"):
                    await feature.tick()
                if isinstance(feature, Controls):
                    await feature.share()

    def killed() -> bool:
        [switch] = [feature for feature in app.state.features if feature.name == "kill_switch"]
        return bool(switch.status.on)

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as http:
        await tick()
        yield Server(http, engine, tick, killed)


async def test_a_flag_set_on_one_replica_counts_on_all(tmp_path: Path, store: Store) -> None:
    async with server(tmp_path, store=store, name="a") as one, server(tmp_path, store=store, name="b") as other:
        assert "flag" not in (await other.effective())[1]
        reply = await one.set(ENABLED, value=False, reason="ask ann@example.org")
        assert (reply["not_saved"], [entry["flag"] for entry in reply["flags"]]) == (None, [ENABLED])
        assert "ann@example.org" not in str(reply)
        await other.tick()
        for each in (one, other):
            is_off, shown = await each.effective()
            assert (is_off, f"flag={ENABLED}:off:STATIC" in shown) == (True, True)
        await other.remove(ENABLED)
        await one.tick()
        is_off, shown = await one.effective()
        assert (is_off, "flag" in shown) == (False, False)


@pytest.mark.parametrize(("in_file", "value", "off"), [("off", True, True), ("on", False, True), ("on", True, False)])
async def test_the_side_that_says_stop_wins(tmp_path: Path, in_file: str, value: bool, off: bool) -> None:
    path = write(tmp_path / "flags.json", flag(default=in_file))
    async with server(tmp_path, path) as one:
        await one.set(ENABLED, value=value)
        assert (await one.effective())[0] is off


async def test_the_kill_flag_is_set_and_released_though_the_file_does_not_have_it(tmp_path: Path) -> None:
    async with server(tmp_path, write(tmp_path / "flags.json", flag())) as one:
        await one.set(KILL, value=True)
        assert one.killed()
        await one.remove(KILL)
        assert not one.killed()


async def test_a_kill_flag_in_the_file_stays_when_an_operator_sets_it_to_false(tmp_path: Path) -> None:
    async with server(tmp_path, write(tmp_path / "flags.json", flag(), flag(default="on"))) as one:
        await one.set(KILL, value=False)
        assert one.killed()


@pytest.fixture
def table() -> Table:
    return Table(memory_database())


def decision(*, value: bool) -> FlagDecision:
    return FlagDecision("new-drafts", value, None, "STATIC")


def test_for_other_flags_the_value_that_an_operator_set_counts() -> None:
    assert stricter("new-drafts", decision(value=True), decision(value=False)) == decision(value=False)
    assert stricter("new-drafts", decision(value=False), decision(value=True)) == decision(value=True)
    assert stricter("new-drafts", decision(value=True), None) == decision(value=True)


def replica(table: Table, folder: Path, name: str = "a") -> tuple[Controls, OperatorFlags]:
    controls = server_controls(table, folder, name)
    return controls, OperatorFlags(controls)


async def test_a_definition_decides_request_by_request(table: Table, tmp_path: Path) -> None:
    (ours, one), (theirs, other) = replica(table, tmp_path, "a"), replica(table, tmp_path, "b")
    definition = flag({"if": [{"==": [{"var": "tenant"}, "bank"]}, "off"]})
    one.set(ENABLED, definition, by="kim", reason="")
    await settle(ours, theirs)
    decided = [other.decide(ENABLED, facts) for facts in (BANK, SHOP)]
    assert [found and (found.value, found.reason) for found in decided] == [
        (False, "TARGETING_MATCH"),
        (True, "DEFAULT"),
    ]


async def test_the_log_says_only_what_changed(table: Table, tmp_path: Path) -> None:
    controls, flags = replica(table, tmp_path)
    flags.set("one", plain_definition(value=True), by="kim", reason="")
    await settle(controls)
    with capture_logs() as lines:
        flags.set("two", plain_definition(value=True), by="kim", reason="")
        await settle(controls)
    assert [line["flag"] for line in lines if line["event"] == "flag_set"] == ["two"]


async def test_a_stored_flag_that_cannot_be_evaluated_stops_speculation(table: Table, tmp_path: Path) -> None:
    controls, flags = replica(table, tmp_path)
    assert flags.decide(ENABLED, BANK) is None
    controls.set("flag", ENABLED, "of a later version")
    controls.set("flag", "new-drafts", "of a later version")
    found = flags.decide(ENABLED, BANK)
    assert found is not None
    assert (found.value, found.error) == (False, "PARSE_ERROR")
    assert flags.decide("new-drafts", BANK) is None
    await settle(controls)


@pytest.mark.parametrize("provided", [True, False])
async def test_a_kill_flag_that_cannot_be_evaluated_kills(tmp_path: Path, store: Store, *, provided: bool) -> None:
    flags = write(tmp_path / "flags.json", kill=flag(default="on" if provided else "off"))
    table = ControlTable(store.database)
    async with server(tmp_path, flags, store) as one:
        assert one.killed() == provided
        table.exchange({control_key("flag", KILL): Control("of a later version", 1.0)})
        await one.tick()
        assert one.killed()
        table.exchange({control_key("flag", KILL): Control(None, 2.0)})
        await one.tick()
        assert one.killed() == provided


@pytest.mark.parametrize(
    ("name", "body", "message"),
    [
        ("new drafts", {"value": True}, "flag is 'new drafts'; allowed: 1 to 64 letters"),
        ("new-drafts\n", {"value": True}, "allowed: 1 to 64 letters"),
        ("new-drafts", {}, "allowed: either value"),
        ("new-drafts", {"value": True, "definition": flag()}, "allowed: either value"),
        (ENABLED, {"definition": flag({"log": ["x"]})}, "has the operator 'log'"),
        (ENABLED, {"definition": {"state": "ON"}}, "flags.speculation.enabled"),
        ("new-drafts", {"definition": flag({"in": ["x" * 20_000, []]})}, "allowed: 16384"),
    ],
)
async def test_an_unusable_definition_is_refused(tmp_path: Path, name: str, body: Any, message: str) -> None:
    async with server(tmp_path) as one:
        assert message in await one.set(name, **body)
        assert (await one.http.get("/admin/flags")).json()["flags"] == []


async def test_there_is_a_limit_of_flags(table: Table, tmp_path: Path) -> None:
    controls, flags = replica(table, tmp_path)
    for number in range(MAX_FLAGS):
        controls.set("flag", f"f{number}", "x")
    with pytest.raises(InvalidParameter, match="64 flags are set already; allowed: to remove one"):
        flags.set("one-more", plain_definition(value=True), by="kim", reason="")
    await settle(controls)


def test_the_command_sets_lists_and_removes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "flag.yaml").write_text("{state: ENABLED, variants: {a: true, b: false}, defaultVariant: b}")
    with served(FakeEngine()) as running:

        def run(*words: str) -> Any:
            return CliRunner().invoke(commands, ["flags", *words, "--url", running.url])

        assert run("set", ENABLED, "off", "--reason", "drill").exit_code == 0
        assert run("list").stderr == ""
        unread = run("set", "new-drafts", "--definition", "flag.yaml")
        assert (unread.exit_code, "names the flag 'new-drafts', so it changes nothing" in unread.stderr) == (0, True)
        shown = run("list", "--json").stdout
        assert (ENABLED in shown, "new-drafts" in shown, "drill" in shown) == (True, True, True)
        assert run("remove", ENABLED).exit_code == 0
        assert f'"flag": "{ENABLED}"' not in run("list", "--json").stdout
        again = run("remove", ENABLED)
        assert (again.exit_code, "allowed: new-drafts" in again.stderr) == (2, True)
        wrong = run("set", ENABLED, "maybe")
        assert (wrong.exit_code, "allowed: on, off, or --definition FILE" in wrong.stderr) == (2, True)
