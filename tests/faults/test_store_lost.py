"""The database goes away under two servers that share it: no request fails, controls hold, records are delivered."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2
from sqlalchemy import func, select

from prolepsis.control.store.store import Store, open_store
from prolepsis.control.store.tables import request_records
from prolepsis.core.config import ServerConfig
from prolepsis.core.telemetry.metrics import Metrics
from tests.control.store.databases import opened
from tests.control.store.proxy import proxied
from tests.server.conftest import served
from tests.server.fakes import FakeEngine

BODY = {"model": "tiny", "prompt": "Hi", "max_tokens": 64}
SOON_S = 30.0


@dataclass(frozen=True, slots=True)
class Door:
    http: httpx2.Client
    store: Store

    def ask(self, number: int) -> list[str]:
        """Return what went wrong, "" for an answer."""
        replies = [self.http.post("/v1/completions", json=BODY) for _ in range(number)]
        return ["" if reply.status_code == 200 else reply.text for reply in replies]

    def stop(self, scope: str) -> httpx2.Response:
        return self.http.put("/admin/kill", json={"on": True, "scope": scope, "reason": "drill"})

    @property
    def num_replicas(self) -> int:
        return len(self.http.get("/admin/replicas").json()["replicas"])

    @property
    def stopped(self) -> set[str]:
        return {one["scope"] for one in self.http.get("/admin/kill").json()["shared"]}


@contextmanager
def door(setting: str, folder: Path) -> Iterator[Door]:
    folder.mkdir()
    config = ServerConfig(
        store=setting, controls_file=folder / "controls.json", requests_per_minute={"tenant": 600}, replay_sample=0.0
    )
    with (
        closing(open_store(config.store, Metrics().registry)) as store,
        served(FakeEngine(), config, store=store) as running,
        httpx2.Client(base_url=running.url) as http,
    ):
        yield Door(http, store)


def soon(condition: Callable[[], object]) -> None:
    end = time.monotonic() + SOON_S
    while not condition():
        assert time.monotonic() < end, f"not within {SOON_S:g} s"
        time.sleep(0.01)


def num_records(setting: str) -> int:
    with closing(opened(setting)) as database, database.read() as connection:
        return connection.execute(select(func.count()).select_from(request_records)).scalar_one()


def test_requests_and_records_survive_the_loss_of_the_database(postgresql: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        proxy, setting = stack.enter_context(proxied(postgresql))
        doors = [stack.enter_context(door(setting, tmp_path / name)) for name in ("a", "b")]
        ours, theirs = doors
        soon(lambda: [one.num_replicas for one in doors] == [2, 2])
        assert ours.stop("tenant:bank").status_code == 200
        soon(lambda: "tenant:bank" in theirs.stopped)
        faults = ours.ask(10) + theirs.ask(10)

        proxy.cut()
        faults += ours.ask(40) + theirs.ask(40)
        soon(lambda: not any(one.store.writer.health().ok for one in doors))
        reply = ours.stop("rule:late")
        assert (reply.status_code, reply.json()["not_saved"]) == (200, None)
        faults += ours.ask(10) + theirs.ask(10)
        assert ours.stopped == {"tenant:bank", "rule:late"}
        assert theirs.stopped == {"tenant:bank"}
        assert set(faults) == {""}
        assert num_records(postgresql) < len(faults)

        proxy.mend()
        soon(lambda: theirs.stopped == {"tenant:bank", "rule:late"})
        soon(lambda: num_records(postgresql) == len(faults))
        assert [one.store.writer.health().dropped for one in doors] == [{}, {}]
