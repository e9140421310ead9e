"""Drills over HTTP: who may, when they are refused, and that a fault never outlives its holder."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx2
import pytest

from prolepsis.control.audit import chain
from prolepsis.control.store.store import Store, open_store
from prolepsis.core.config import ServerConfig
from prolepsis.core.telemetry.metrics import Metrics
from prolepsis.lab.drills.feature import LEASE_S, Drills
from prolepsis.server.front.key_file import KeyFile, new_key
from prolepsis.server.front.keys import Keys
from tests.clock import Clock
from tests.control.store.databases import migrated_setting
from tests.fake_client import INFO
from tests.server.admission.conftest import bearer
from tests.server.application import build, feature_of
from tests.server.fakes import ByteTokenizer, FakeEngine

RAISE = {"drill": "proposer-raise", "drain": True}
BODY = {"model": "tiny", "prompt": "Hi", "max_tokens": 4}


@dataclass
class Bench:
    """A server with two keys of the role admin, and one of a client."""

    folder: Path
    store: Store | None = None
    config: ServerConfig = field(default_factory=lambda: ServerConfig(allow_drills=True))
    engine: FakeEngine = field(default_factory=lambda: FakeEngine(info=replace(INFO, proposers=("suffix",))))

    def __post_init__(self) -> None:
        file = KeyFile(self.folder / "keys.json")
        self.keys: dict[str, str] = {}
        for name, role in (("ann", "admin"), ("bob", "admin"), ("client", "client"), ("operator", "operator")):
            record, self.keys[name] = new_key(name, roles=(role,))
            file.add(record)
        app = build(self.config, self.engine, ByteTokenizer(), Metrics(), keys=Keys(file), store=self.store)
        self.http = httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://localhost")
        self.gate = app.state.admission
        self.drills = feature_of(app, Drills)
        self.clock = Clock()
        self.drills._clock = self.clock

    async def hold(self, by: str = "ann", **body: object) -> httpx2.Response:
        return await self.http.put("/admin/drills", json=RAISE | body, headers=bearer(self.keys[by]))

    async def refusal(self, by: str = "ann", **body: object) -> tuple[int, str]:
        reply = await self.hold(by, **body)
        return reply.status_code, reply.json()["error"]["code"]

    async def status_of(self, name: str) -> int:
        reply = await self.http.post("/v1/completions", json=BODY, headers=bearer(self.keys[name]))
        return reply.status_code

    @property
    def faults(self) -> list[str]:
        """Those that the engine got."""
        return self.engine.faults


async def test_drills_are_off_until_the_server_allows_them(tmp_path: Path) -> None:
    bench = Bench(tmp_path, config=ServerConfig())
    assert await bench.refusal(inject=True) == (409, "drills_off")
    assert bench.faults == []


@pytest.mark.parametrize("name", ["client", "operator"])
async def test_only_administrators_drill(tmp_path: Path, name: str) -> None:
    assert (await Bench(tmp_path).hold(name)).status_code == 403


async def test_without_a_drain_nothing_is_injected(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    assert await bench.refusal(drain=False, inject=True) == (409, "no_drain")
    assert bench.faults == []
    assert await bench.status_of("client") == 200


async def test_while_requests_run_nothing_is_injected(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.gate.num_inside = 1
    assert (await bench.hold(inject=True)).json() == {"num_inside": 1}
    assert bench.faults == []
    bench.gate.num_inside = 0
    assert (await bench.hold(inject=True)).status_code == 200
    bench.gate.num_inside = 4  # those of the drill
    assert (await bench.hold(inject=True)).status_code == 200
    assert bench.faults == ["raise"]


async def test_a_drained_server_takes_requests_of_the_holder_only(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    await bench.hold(inject=True)
    assert [await bench.status_of(name) for name in ("ann", "bob", "client")] == [200, 503, 503]
    await bench.hold(result={"result": "passed"})
    assert [await bench.status_of(name) for name in ("ann", "bob", "client")] == [200, 200, 200]
    assert bench.faults == ["raise", "none"]


async def test_a_fault_is_taken_back_when_asked(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    for inject in (True, True, False, False, True):
        assert (await bench.hold(inject=inject)).status_code == 200
    assert bench.faults == ["raise", "none", "raise"]


async def test_a_fault_does_not_outlive_its_holder(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    await bench.hold(inject=True)
    bench.clock.now += LEASE_S - 1.0
    await bench.hold(inject=True)
    bench.clock.now += LEASE_S - 1.0
    await bench.drills.tick()
    assert bench.faults == ["raise"]
    bench.clock.now += 2.0
    await bench.drills.tick()
    assert bench.faults == ["raise", "none"]
    assert await bench.status_of("client") == 200
    assert (await bench.hold("bob")).status_code == 200


async def test_one_drill_runs_at_a_time(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    await bench.hold()
    assert await bench.refusal("bob") == (409, "drill_running")
    assert await bench.refusal(drill="proposer-hang") == (409, "drill_running")


@pytest.mark.parametrize(
    ("drill", "code"),
    [
        *(("head-damage", "not_here"), ("store-away", "not_here"), ("engine-kill", "not_here")),
        *(("replica-kill", "not_here"), ("time-skew", "not_here"), ("none such", "unknown_drill")),
    ],
)
async def test_what_a_server_cannot_have_is_refused_with_the_reason(tmp_path: Path, drill: str, code: str) -> None:
    bench = Bench(tmp_path)
    assert await bench.refusal(drill=drill, inject=True) == (409, code)
    assert bench.gate.drilled_by is None


@asynccontextmanager
async def kept(folder: Path) -> AsyncIterator[Bench]:
    with closing(open_store(migrated_setting(folder), Metrics().registry)) as store:
        yield Bench(folder, store)


@pytest.mark.parametrize(("drill", "failing"), [("store-away", {"read", "write"}), ("disk-full", {"write"})])
async def test_the_store_fails_and_comes_back(tmp_path: Path, drill: str, failing: set[str]) -> None:
    async with kept(tmp_path) as bench:
        assert bench.store is not None
        database = bench.store.database
        await bench.hold(drill=drill, inject=True)
        assert set(database.failing) == failing
        await bench.hold(drill=drill, result={})
        assert database.failing == {}


async def test_each_run_and_each_fault_is_in_the_audit_log(tmp_path: Path) -> None:
    async with kept(tmp_path) as bench:
        await bench.hold(inject=True)
        await bench.hold(result={"result": "passed"})
        assert bench.store is not None
        assert bench.store.writer.flush(20.0)
        with bench.store.database.read() as connection:
            found = [one for one in chain.entries(connection) if one.action.startswith("drill.")]
    assert [one.action for one in found] == ["drill.fault", "drill.fault", "drill.run"]
    details = [one.details for one in found if one.details is not None]
    assert {one.subject for one in details} == {"proposer-raise"}
    assert [one.after for one in details] == [
        {"state": "injected"},
        {"state": "taken back", "why": "it is over"},
        {"result": "passed"},
    ]
